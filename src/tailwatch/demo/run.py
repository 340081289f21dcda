"""One game day on this machine, from an empty directory to an exit code.

Contract: whatever happens, what was injected is undone, processes end, the evidence is judged and a
report is written; a kill of this process leaves that to the guard. Ctrl-C ends within 10 s with the
verdict ABORTED. Exit codes are those of the verdict.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TextIO

import msgspec

from tailwatch.chaos.controls import Control, parse_control
from tailwatch.chaos.feed import StepFeed
from tailwatch.chaos.judge import judge
from tailwatch.chaos.plan import DEMO_PLAN, load_plan, select
from tailwatch.chaos.runner import Runner
from tailwatch.demo.collect import copy_run, query_everything
from tailwatch.demo.doctor import RUNS
from tailwatch.demo.driver import write_driver
from tailwatch.demo.interrupts import Interrupts
from tailwatch.demo.lint import check_here
from tailwatch.demo.stack import NODES, RANKS_PER_NODE, WORLD_SIZE, Stack
from tailwatch.errors import UsageError
from tailwatch.evidence import EvidenceDirectory, Plan
from tailwatch.holding import hold
from tailwatch.manifest import describe
from tailwatch.processes import (
    Guard,
    StartError,
    kill_for_sure,
    make_scratch,
    remove_scratch,
    scratch_path,
)
from tailwatch.report import write_report
from tailwatch.report.summary import summary_table
from tailwatch.ring import ROOM_BYTES
from tailwatch.runs import RunDirectory, new_run_name
from tailwatch.tools import find_tool
from tailwatch.verdicts import EXIT_CODES, ReportDocument


def run_demo(*, out: Path | None, only: str | None, control: str | None, json_output: bool) -> int:
    """Run the built-in plan; see `run_plan`."""
    return run_plan(plan=DEMO_PLAN, out=out, only=only, control=control, json_output=json_output)


def run_plan(
    *, plan: Path, out: Path | None, only: str | None, control: str | None, json_output: bool
) -> int:
    """Run a plan, or one experiment of it; a control ties the hands of the first one left."""
    tied = parse_control(control)
    chosen = select(load_plan(plan), only)
    if tied is not None:
        chosen = select(chosen, chosen.experiments[0].name)
    return _GameDay(chosen, out, tied, json_output).run()


class _GameDay:
    def __init__(
        self, plan: Plan, out: Path | None, control: Control | None, json_output: bool
    ) -> None:
        self.plan = plan
        self.control = control
        self.json_output = json_output
        self.config = check_here(plan)
        for tool in ("prometheus", "alertmanager"):
            find_tool(tool)
        self.started = time.time()
        root = out if out is not None else RUNS / new_run_name(plan.name)
        self.run_directory = RunDirectory.create(root.absolute(), self._manifest())
        self.evidence = EvidenceDirectory(self.run_directory.evidence)
        self.token = secrets.token_hex(8)
        self.scratch = scratch_path(self.token, ROOM_BYTES * WORLD_SIZE)

    def run(self) -> int:
        """Run it and return the exit code of its verdict."""
        try:
            with hold(self.run_directory.root, "run directory"), contextlib.ExitStack() as last:
                self._run(last)
            copy_run(self.run_directory, self.evidence)
        except (OSError, StartError) as error:
            self._say(f"failed: {error}")
        try:
            document = judge(self.evidence.root)
        except UsageError as error:
            self._say(f"no verdict: {error}")
            return EXIT_CODES["ABORTED"]
        try:
            page: Path | None = write_report(
                document, self.evidence.root, self.run_directory.report
            )
        except (OSError, UsageError) as error:
            self._say(f"no report: {error}")
            page = None
        self._conclude(document, page)
        return EXIT_CODES[document.verdict]

    def _run(self, last: contextlib.ExitStack) -> None:
        """Run the plan; what `last` holds is done in any case, each part for itself."""
        write_driver(self.run_directory.root, self.token, [self.scratch])
        interrupts = Interrupts()
        interrupts.install()
        omit = [self.plan.experiments[0].expected[0].name] if self.control == "rule-removed" else []
        stack = Stack(
            self.run_directory,
            self.config,
            token=self.token,
            scratch=self.scratch,
            webhook=self.evidence.webhook,
            omit=omit,
            progress=self._say,
            interrupted=interrupts.check,
        )
        runner = Runner(
            self.plan,
            stack,
            self.evidence,
            StepFeed([self.run_directory.steps / f"{node}.steplog" for node in NODES]),
            alerts=stack,
            progress=self._say,
            control=self.control,
        )
        self._say(f"run {self.run_directory.root}")

        def start() -> None:
            self._guard(last)
            last.callback(stack.stop)
            stack.start()

        try:
            runner.run(start)
        finally:
            self._say("stopping the job and collecting the evidence")
            query_everything(stack.client(), self.evidence, self.started, time.time())

    def _guard(self, last: contextlib.ExitStack) -> None:
        run = str(self.run_directory.root)
        guard = Guard.start(
            run=self.run_directory.root,
            token=self.token,
            ledger=self.evidence.ledger,
            scratch=[self.scratch],
            then=[sys.executable, "-m", "tailwatch", "gameday", "doctor", run],
        )
        last.callback(guard.release)
        last.callback(remove_scratch, self.scratch, self.token)
        last.callback(kill_for_sure, self.token)
        make_scratch(self.scratch, self.token)

    def _manifest(self) -> dict[str, object]:
        return describe(
            config=self.config,
            workload=self.config.workload,
            nodes=list(NODES),
            ranks_per_node=RANKS_PER_NODE,
            backend="gloo",
            plan=self.plan.name,
        )

    def _say(self, text: str) -> None:
        stream = sys.stderr if self.json_output else sys.stdout
        _print(f"[{time.time() - self.started:6.1f} s] {text}", stream)

    def _conclude(self, document: ReportDocument, page: Path | None) -> None:
        if self.json_output:
            _print(msgspec.json.encode(document).decode(), sys.stdout)
            return
        _print(f"\n{summary_table(document)}", sys.stdout)
        if page is not None:
            _print(f"\nreport: {page}", sys.stdout)


def _print(text: str, stream: TextIO) -> None:
    """Print a line; a reader that went away (`| head`) is no reason to leave a fault standing."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
