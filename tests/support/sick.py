"""A node agent whose reads of chosen files fail or hang; see tests/agents/sick.c."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.agents import Agent
from support.checkout import ROOT

INTERVAL = 0.2
DEADLINE = 0.4
STALE = 0.8

# The real agent, only faster: a fault is seen after an interval and a deadline of its own.
_FASTER = f"""
import sys
from tailwatch.agents.node import lane, main, source, watch
from tailwatch.agents.node.collectors import COLLECTORS
for collector in COLLECTORS.values():
    collector.interval, collector.deadline = {INTERVAL}, {DEADLINE}
source.DISCOVER_SECONDS = {INTERVAL}
lane.BACKOFF_INTERVALS = 3
lane.WATCH_SECONDS = 0.1
watch.STALE_FLOOR_SECONDS = {STALE}
main.RENDER_SECONDS = 0.1
main.POLL_SECONDS = 0.05
sys.exit(main.main())
"""


@functools.cache
def shim() -> Path:
    """Build the library, once a test run."""
    folder = Path(tempfile.mkdtemp(prefix="tailwatch-sick-"))
    library = folder / "sick.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-o", library, ROOT / "tests/agents/sick.c"],
        check=True,
        capture_output=True,
    )
    return library


class SickAgent(Agent):
    """An agent on a tree; `sicken` makes what it reads fail."""

    def __init__(self, folder: Path, arguments: list[str | Path]) -> None:
        self.rules = folder / "rules"
        self.log = folder / "reads"
        self.rules.write_text("")
        self.log.write_bytes(b"")
        super().__init__(
            "node",
            arguments,
            folder / "ready",
            program=["-c", _FASTER],
            environment={
                "LD_PRELOAD": str(shim()),
                "SICK_RULES": str(self.rules),
                "SICK_LOG": str(self.log),
            },
        )

    def sicken(self, *rules: str) -> None:
        """Apply these rules and no others; none makes everything well."""
        fresh = self.rules.with_suffix(".new")
        fresh.write_text("".join(f"{rule}\n" for rule in rules))
        os.replace(fresh, self.rules)

    def reads(self) -> int:
        """Return how many reads a rule has met."""
        return self.log.stat().st_size


@contextmanager
def sick_agent(
    folder: Path, sysfs: Path, *collectors: str, more: Sequence[str | Path] = ()
) -> Iterator[SickAgent]:
    """Run a fast agent with these collectors on a tree; `more` are further flags."""
    folder.mkdir(parents=True, exist_ok=True)
    agent = SickAgent(
        folder,
        [
            *("--node", "n", "--path.sysfs", sysfs, "--listen", "127.0.0.1:0"),
            "--collector.disable-defaults",
            *(f"--collector.{name}" for name in collectors),
            *more,
        ],
    )
    try:
        yield agent
    finally:
        agent.sicken()
        agent.kill()
