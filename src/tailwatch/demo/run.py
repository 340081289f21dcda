"""One game day on this machine, from an empty directory to an exit code.

Contract: whatever happens, what was injected is undone, processes end, the evidence is judged and a
report is written; a kill of this process leaves that to the guard. Ctrl-C ends within 10 s with the
verdict ABORTED. Exit codes are those of the verdict.
"""

from __future__ import annotations

import secrets
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec

from tailwatch import __version__
from tailwatch.chaos.controls import Control, parse_control
from tailwatch.chaos.feed import StepFeed
from tailwatch.chaos.judge import judge
from tailwatch.chaos.plan import DEMO_PLAN, load_plan, select
from tailwatch.chaos.runner import Runner
from tailwatch.demo.collect import copy_run, query_everything
from tailwatch.demo.doctor import RUNS
from tailwatch.demo.driver import write_driver
from tailwatch.demo.stack import NODES, WORLD_SIZE, Stack
from tailwatch.evidence import EvidenceDirectory, Plan
from tailwatch.processes import Guard, kill_for_sure, make_scratch, remove_scratch
from tailwatch.report import write_report
from tailwatch.report.summary import summary_table
from tailwatch.runs import RunDirectory, new_run_name
from tailwatch.tools import find_tool
from tailwatch.trainer.config import TrainerConfig, config_from
from tailwatch.verdicts import EXIT_CODES, ReportDocument

TMPFS = Path("/dev/shm")


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
        self.config = config_from(plan.workload, "workload")
        self.config.check(WORLD_SIZE)
        for tool in ("prometheus", "alertmanager"):
            find_tool(tool)
        self.started = time.time()
        name = out.name if out is not None else new_run_name(plan.name)
        root = out if out is not None else RUNS / name
        self.run_directory = RunDirectory.create(root.absolute(), _manifest(self.config, plan))
        self.evidence = EvidenceDirectory(self.run_directory.evidence)
        self.token = secrets.token_hex(8)
        base = TMPFS if TMPFS.is_dir() else self.run_directory.root
        self.scratch = base / f"tailwatch-{self.token}"

    def run(self) -> int:
        """Run it and return the exit code of its verdict."""
        write_driver(self.run_directory.root, self.token, [self.scratch])
        _terminate_like_interrupt()
        guard = Guard.start(
            run=self.run_directory.root,
            token=self.token,
            ledger=self.evidence.ledger,
            scratch=[self.scratch],
            then=[sys.executable, "-m", "tailwatch", "gameday", "doctor", self.run_directory.root],
        )
        make_scratch(self.scratch, self.token)
        omit = [self.plan.experiments[0].expected[0].name] if self.control == "rule-removed" else []
        stack = Stack(
            self.run_directory,
            self.config,
            token=self.token,
            scratch=self.scratch,
            webhook=self.evidence.webhook,
            omit=omit,
            progress=self._say,
        )
        runner = Runner(
            self.plan,
            stack,
            self.evidence,
            StepFeed([self.run_directory.steps / f"{node}.steplog" for node in NODES]),
            firing=stack.firing,
            progress=self._say,
            control=self.control,
        )
        self._say(f"run {self.run_directory.root}")
        try:
            runner.run(stack.start)
        finally:
            # From here on an impatient second Ctrl-C must not leave anything behind.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._say("stopping the job and collecting the evidence")
            query_everything(stack.client(), self.evidence, self.started, time.time())
            stack.stop()
            kill_for_sure(self.token)
            remove_scratch(self.scratch, self.token)
            guard.release()
        copy_run(self.run_directory, self.evidence)
        document = judge(self.evidence.root)
        page = write_report(document, self.evidence.root, self.run_directory.report)
        self._conclude(document, page)
        return EXIT_CODES[document.verdict]

    def _say(self, text: str) -> None:
        stream = sys.stderr if self.json_output else sys.stdout
        print(f"[{time.time() - self.started:6.1f} s] {text}", file=stream, flush=True)

    def _conclude(self, document: ReportDocument, page: Path) -> None:
        if self.json_output:
            sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
            return
        print()
        print(summary_table(document))
        print(f"\nreport: {page}")


def _terminate_like_interrupt() -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def _manifest(config: TrainerConfig, plan: Plan) -> dict[str, object]:
    from importlib.metadata import version

    packages = ("torch", "numpy", "msgspec", "xxhash")
    return {
        "schema": "tailwatch.manifest/1",
        "tailwatch": __version__,
        "plan": plan.name,
        "trainer": config,
        "workload": config.workload,
        "nodes": list(NODES),
        "world_size": WORLD_SIZE,
        "backend": "gloo",
        "python": sys.version.split()[0],
        "packages": {package: version(package) for package in packages},
    }
