"""Who drives a run on this machine, so that others can tell a dead run from a live one.

Contract: `driver.json` in the run directory names the driver process, the token that all processes
of the run carry, and the scratch directories; it is there before anything is started.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tailwatch.files import write_durably
from tailwatch.processes import same_process, start_ticks


class Driver(msgspec.Struct, kw_only=True):
    """The driver process of a run and what it left to clean up."""

    pid: int
    start_ticks: int
    token: str
    scratch: list[str]

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return same_process(self.pid, self.start_ticks)


def write_driver(run: Path, token: str, scratch: list[Path]) -> None:
    """Write down this process as the driver of a run."""
    driver = Driver(
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()) or 0,
        token=token,
        scratch=[str(path) for path in scratch],
    )
    write_durably(run / "driver.json", msgspec.json.encode(driver))


def read_driver(run: Path) -> Driver | None:
    """Return the driver of a run, or None when the run was not driven from here."""
    try:
        return msgspec.json.decode((run / "driver.json").read_bytes(), type=Driver)
    except FileNotFoundError:
        return None
