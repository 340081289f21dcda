"""`tailwatch train`: a run on this machine without a game day around it.

Contract: starts a store and one launcher a node, prints a line every few seconds, ends with the
job. Ctrl-C orders all nodes to leave, so the last step is in a checkpoint. `--resume` goes on with
a run directory; without it a directory that holds anything is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import msgspec

from tailwatch.errors import UsageError
from tailwatch.holding import hold
from tailwatch.manifest import describe
from tailwatch.processes import (
    Guard,
    Process,
    StartError,
    free_port,
    kill_for_sure,
    make_scratch,
    remove_scratch,
    scratch_path,
    spawn,
    wait_until,
)
from tailwatch.records import StepRecord, decode
from tailwatch.ring import ROOM_BYTES, RingReader, TornRing
from tailwatch.runs import RunDirectory, new_run_name
from tailwatch.trainer.config import TrainerConfig, config_from
from tailwatch.trainer.launch.commands import launcher_command, store_command

LEAVE_SECONDS = 45.0
PROGRESS_SECONDS = 5.0


def main(argv: list[str]) -> int:
    """Train until the last step or Ctrl-C; 0 when the job ended in good order."""
    parser = argparse.ArgumentParser(
        prog="tailwatch train",
        description="Train the small MoE model with GRPO on this machine (gloo, CPU).",
        epilog="Example: tailwatch train --out /tmp/run --nodes 2 --ranks 2 --set max_steps=200",
    )
    parser.add_argument("--out", type=Path, help="run directory (default runs/train-TIME)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out")
    parser.add_argument("--nodes", type=int, default=2, help="launchers to start (default 2)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks a node (default 2)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="trainer setting"
    )
    parser.add_argument(
        "--from-scratch",
        action="store_true",
        help="with --resume: start again from nothing when no checkpoint is valid",
    )
    arguments = parser.parse_args(argv)
    if arguments.nodes < 1 or arguments.ranks < 1:
        raise UsageError("expected at least 1", source="--nodes and --ranks")
    run = _resume(arguments) if arguments.resume else _create(arguments)
    try:
        with hold(run.root, "run directory"):
            return _Local(run, arguments).train()
    except StartError as error:
        print(f"tailwatch train: {error}", file=sys.stderr)
        return 1


def _create(arguments: argparse.Namespace) -> RunDirectory:
    settings = {}
    for setting in arguments.set:
        field, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"is {setting!r}, expected FIELD=VALUE", source="--set")
        try:
            settings[field] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise UsageError(f"{value!r} is no number", source="--set", place=field) from None
    config: TrainerConfig = config_from(settings, "--set")
    for nodes in range(1, arguments.nodes + 1):
        try:
            config.check(nodes * arguments.ranks)
        except UsageError as error:
            raise UsageError(
                f"{error} (with {nodes} of {arguments.nodes} nodes; any of them may leave)",
                source="--nodes and --ranks",
            ) from None
    root = arguments.out or Path("runs") / new_run_name("train")
    manifest = describe(
        config=config,
        workload=config.workload,
        nodes=[f"node-{index}" for index in range(arguments.nodes)],
        ranks_per_node=arguments.ranks,
        backend="gloo",
    )
    return RunDirectory.create(root.absolute(), manifest)


def _resume(arguments: argparse.Namespace) -> RunDirectory:
    out = arguments.out
    if out is None or not (out / "manifest.json").is_file():
        source = out or "--resume"
        raise UsageError("holds no run (no manifest.json), expected --out RUN", source=source)
    if arguments.set:
        raise UsageError("a resumed run keeps its configuration", source="--set")
    return RunDirectory(out.resolve())


class _Local:
    """The processes of one run on this machine."""

    def __init__(self, run: RunDirectory, arguments: argparse.Namespace) -> None:
        self.run = run
        self.nodes = [f"node-{index}" for index in range(arguments.nodes)]
        self.ranks = arguments.ranks
        self.from_scratch = arguments.from_scratch
        self.token = secrets.token_hex(8)
        self.scratch = scratch_path(self.token, ROOM_BYTES * len(self.nodes) * self.ranks)

    def train(self) -> int:
        """Start everything, follow it, end everything."""
        guard = Guard.start(
            run=self.run.root,
            token=self.token,
            ledger=self.run.evidence / "ledger.jsonl",
            scratch=[self.scratch],
        )
        make_scratch(self.scratch, self.token)
        # An eviction of this process is one of its nodes.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            launchers = self._start()
            try:
                self._follow(launchers)
            except KeyboardInterrupt:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                print("interrupted: all nodes leave after a checkpoint", flush=True)
                # All at once: otherwise the last ones would form a job of their own first.
                for launcher in launchers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(launcher.pid, signal.SIGTERM)
            states = [launcher.wait(LEAVE_SECONDS) for launcher in launchers]
            return 0 if all(status == 0 for status in states) else 1
        finally:
            kill_for_sure(self.token)
            remove_scratch(self.scratch, self.token)
            guard.release()

    def _spawn(self, name: str, command: list[str]) -> Process:
        return spawn(
            command,
            log=self.run.logs / f"{name}.log",
            token=self.token,
            name=name,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )

    def _start(self) -> list[Process]:
        address = f"127.0.0.1:{free_port()}"
        store = self._spawn("store", store_command(address))
        wait_until(lambda: "store on" in store.output(), 60, "the store serves", processes=[store])
        launchers = []
        for node in self.nodes:
            rings = self.scratch / node
            rings.mkdir()
            command = launcher_command(
                run=self.run.root,
                node=node,
                store=address,
                ranks=self.ranks,
                nodes=len(self.nodes),
                rings=rings,
                doorbell=rings / "doorbell",
                from_scratch=self.from_scratch,
            )
            launchers.append(self._spawn(f"launcher-{node}", command))
        print(f"run {self.run.root}", flush=True)
        return launchers

    def _follow(self, launchers: list[Process]) -> None:
        said = time.monotonic()
        while any(launcher.alive() for launcher in launchers):
            time.sleep(0.2)
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                self._tell()

    def _tell(self) -> None:
        """Print the newest step of rank 0, and remove the rings of older attempts."""
        rings = sorted(self.scratch.rglob("*.r00000.ring"), key=lambda path: path.name)
        if not rings:
            return
        attempt = rings[-1].name.rsplit(".a", 1)[1]
        for path in self.scratch.rglob("*.ring"):
            # No agent drains them here, and a tmpfs is small.
            if path.name.rsplit(".a", 1)[1][:4] < attempt[:4]:
                path.unlink(missing_ok=True)
        try:
            reader = RingReader(rings[-1])
        except (OSError, TornRing):
            return
        records = [decode(payload) for payload in reader.read_records()]
        reader.close()
        steps = [record for record in records if isinstance(record, StepRecord)]
        if steps:
            last = steps[-1]
            reward = "" if last.reward is None else f", reward {last.reward:.3f}"
            print(
                f"attempt {last.attempt}, step {last.step}, {last.stage}, "
                f"{last.duration_ns / 1e6:.0f} ms, loss {last.loss:.4f}{reward}",
                flush=True,
            )
