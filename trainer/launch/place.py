"""Where a rank runs, handed to it on its command line, and how its node is told to leave."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from tailwatch import control
from tailwatch.control import Order
from tailwatch.runs import RunDirectory


class RankPlace(msgspec.Struct, kw_only=True, frozen=True):
    """Where a rank runs and where it writes."""

    run: Path
    node: str
    launcher_pid: int
    rings: Path
    doorbell: Path
    from_scratch: bool = False

    def arguments(self) -> list[str]:
        """Return it as arguments of a rank."""
        found = ["--run", str(self.run), "--node", self.node]
        found += ["--launcher-pid", str(self.launcher_pid)]
        found += ["--rings", str(self.rings), "--doorbell", str(self.doorbell)]
        return found + (["--from-scratch"] if self.from_scratch else [])

    @classmethod
    def of(cls, argv: list[str]) -> RankPlace:
        """Return the place that `arguments` wrote."""
        parser = argparse.ArgumentParser(prog="python -m tailwatch.trainer.launch.rank")
        parser.add_argument("--run", type=Path, required=True)
        parser.add_argument("--node", required=True)
        parser.add_argument("--launcher-pid", type=int, required=True)
        parser.add_argument("--rings", type=Path, required=True)
        parser.add_argument("--doorbell", type=Path, required=True)
        parser.add_argument("--from-scratch", action="store_true")
        return cls(**vars(parser.parse_args(argv)))


def submit_leave(run: RunDirectory, node: str, *, by: str, seconds: float) -> None:
    """Order a node to leave at the next boundary, within `seconds`.

    The order is named after node and attempt: a signal to a whole process group is one order.
    """
    attempts = run.read_attempts()
    deadline = time.time_ns() + int(seconds * 1e9)
    order = Order(
        id=f"leave-{node[:32]}-a{attempts[-1].attempt if attempts else 0:04d}",
        kind="leave",
        by=by,
        reason="eviction",
        deadline_ns=deadline,
        node=node,
    )
    control.submit(run.orders, order)
