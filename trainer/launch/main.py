"""`tailwatch train`: a run on this machine without a game day around it.

Contract: starts a store and one launcher a node, prints a line every few seconds, ends with the
job. Ctrl-C orders all nodes to leave, so the last step is in a checkpoint. `--resume` goes on with
a run directory; without it a directory that holds anything is refused.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from pathlib import Path

import msgspec

from tailwatch.errors import UsageError
from tailwatch.processes import (
    Guard,
    Process,
    free_port,
    kill_for_sure,
    make_scratch,
    remove_scratch,
    spawn,
    wait_until,
)
from tailwatch.records import StepRecord, decode
from tailwatch.ring import RingReader, TornRing
from tailwatch.runs import RunDirectory, new_run_name
from tailwatch.trainer.config import TrainerConfig, config_from

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
    arguments = parser.parse_args(argv)
    if arguments.nodes < 1 or arguments.ranks < 1:
        raise UsageError("expected at least 1", source="--nodes and --ranks")
    run = _resume(arguments.out) if arguments.resume else _create(arguments)
    return _Local(run, arguments.nodes, arguments.ranks).train()


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
    config.check(arguments.nodes * arguments.ranks)
    root = arguments.out or Path("runs") / new_run_name("train")
    manifest = {
        "schema": "tailwatch.manifest/1",
        "trainer": config,
        "workload": config.workload,
        "world_size": arguments.nodes * arguments.ranks,
        "backend": "gloo",
    }
    return RunDirectory.create(root.absolute(), manifest)


def _resume(out: Path | None) -> RunDirectory:
    if out is None or not (out / "manifest.json").is_file():
        raise UsageError(
            "holds no run (no manifest.json), expected --out RUN", source=out or "--resume"
        )
    return RunDirectory(out.resolve())


class _Local:
    """The processes of one run on this machine."""

    def __init__(self, run: RunDirectory, nodes: int, ranks: int) -> None:
        self.run = run
        self.nodes = [f"node-{index}" for index in range(nodes)]
        self.ranks = ranks
        self.token = secrets.token_hex(8)
        self.scratch = Path("/dev/shm") / f"tailwatch-{self.token}"

    def train(self) -> int:
        """Start everything, follow it, end everything."""
        guard = Guard.start(
            run=self.run.root,
            token=self.token,
            ledger=self.run.evidence / "ledger.jsonl",
            scratch=[self.scratch],
            then=[sys.executable, "-c", ""],
        )
        make_scratch(self.scratch, self.token)
        try:
            launchers = self._start()
            try:
                self._follow(launchers)
            except KeyboardInterrupt:
                print("interrupted: all nodes leave after a checkpoint", flush=True)
                for launcher in launchers:
                    launcher.terminate(LEAVE_SECONDS)
            return max(abs(launcher.wait(LEAVE_SECONDS) or 0) for launcher in launchers)
        finally:
            kill_for_sure(self.token)
            remove_scratch(self.scratch, self.token)
            guard.release()

    def _python(self, name: str, module: str, *arguments: str | Path) -> Process:
        return spawn(
            [sys.executable, "-m", module, *arguments],
            log=self.run.logs / f"{name}.log",
            token=self.token,
            name=name,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )

    def _start(self) -> list[Process]:
        address = f"127.0.0.1:{free_port()}"
        store = self._python("store", "tailwatch.trainer.launch.store", "--listen", address)
        wait_until(lambda: "store on" in store.output(), 60, "the store serves", processes=[store])
        launchers = []
        for node in self.nodes:
            rings = self.scratch / node
            rings.mkdir()
            launcher = self._python(
                f"launcher-{node}", "tailwatch.trainer.launch.node",
                "--run", self.run.root, "--node", node, "--store", address,
                "--ranks", str(self.ranks), "--nodes", f"1:{len(self.nodes)}",
                "--rings", rings, "--doorbell", rings / "doorbell",
            )  # fmt: skip
            launchers.append(launcher)
        print(f"run {self.run.root}", flush=True)
        return launchers

    def _follow(self, launchers: list[Process]) -> None:
        said = time.monotonic()
        while any(launcher.alive() for launcher in launchers):
            time.sleep(0.2)
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                record = self._newest()
                if record is not None:
                    reward = "" if record.reward is None else f", reward {record.reward:.3f}"
                    print(
                        f"attempt {record.attempt}, step {record.step}, {record.stage}, "
                        f"{record.duration_ns / 1e6:.0f} ms, loss {record.loss:.4f}{reward}",
                        flush=True,
                    )

    def _newest(self) -> StepRecord | None:
        found: StepRecord | None = None
        for path in sorted(self.scratch.rglob("*.r00000.ring"))[-1:]:
            try:
                reader = RingReader(path)
            except (OSError, TornRing):
                continue
            for payload in reader.read_records():
                record = decode(payload)
                if isinstance(record, StepRecord):
                    found = record
            reader.close()
        return found
