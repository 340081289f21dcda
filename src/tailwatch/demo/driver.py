"""Who drives a run on this machine, so that others can tell a dead run from a live one.

Contract: `driver.json` in the run directory names the driver process, the token that all processes
of the run carry, and the scratch directories; it is there before anything is started.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from tailwatch.errors import UsageError
from tailwatch.files import write_durably
from tailwatch.processes import same_process, start_ticks


class Driver(msgspec.Struct, kw_only=True):
    """The driver process of a run and what it left to clean up."""

    host: str
    pid: int
    start_ticks: int
    token: str
    scratch: list[str]

    @property
    def alive(self) -> bool:
        """Whether that very process still runs; of another host nobody here can say it does not."""
        return self.host != platform.node() or same_process(self.pid, self.start_ticks)


def write_driver(run: Path, token: str, scratch: list[Path]) -> None:
    """Write down this process as the driver of a run."""
    driver = Driver(
        host=platform.node(),
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()) or 0,
        token=token,
        scratch=[str(path) for path in scratch],
    )
    write_durably(run / "driver.json", msgspec.json.encode(driver))


def read_driver(run: Path) -> Driver | None:
    """Return the driver of a run, or None when none is written down; UsageError for nonsense."""
    path = run / "driver.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Driver)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"unreadable: {error}", source=path) from None
