"""The memory tier: committed checkpoints in this machine's memory, in front of the disk.

Contract: a directory on tmpfs with the names, manifests and checks of the disk's own. It outlives
the processes of the job, not the machine. A save is committed there first and copied to the disk
from there, so a job killed in between loses nothing; a load looks here first. It serves a job whose
ranks are all on one machine; `usable` says no, on all ranks, where they are not, or where the
checkpoint would take memory that is not free.

Cost: the memory of two checkpoints while a save goes on, of one otherwise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tailwatch.integrity import Candidate, candidates, remove_leftovers
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint.ranks import Ranks

# Of the memory file system, what a checkpoint must leave free.
SPARE = 0.1

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class MemoryTier:
    """The memory tier of one run.

    Args:
        run: the run it belongs to.
        root: a tmpfs, /dev/shm by default.
    """

    def __init__(self, run: RunDirectory, root: Path = Path("/dev/shm")) -> None:
        owner = hashlib.sha256(f"{os.getuid()} {run.root}".encode()).hexdigest()[:12]
        self.checkpoints = root / f"tailwatch-checkpoints-{owner}"

    def usable(self, ranks: Ranks, need_bytes: int) -> bool:
        """Collective: whether a checkpoint of so many bytes can be kept here."""

        def prepare() -> tuple[str, int, int]:
            self.checkpoints.mkdir(mode=0o700, exist_ok=True)
            stat = self.checkpoints.stat()
            return _BOOT.read_text(), stat.st_dev, stat.st_ino

        def room() -> bool:
            usage = shutil.disk_usage(self.checkpoints)
            return usage.free - need_bytes >= SPARE * usage.total

        return len(set(ranks.gather(prepare))) == 1 and ranks.decide(room)

    def committed(self) -> list[Candidate]:
        """Return what is committed here, newest first."""
        return [c for c in candidates(self.checkpoints) if c.state == "committed"]

    def forget(self, attempt: int, *, before_step: int) -> None:
        """Delete what a newer checkpoint on the disk has made needless; what is bad stays."""
        remove_leftovers(self.checkpoints, attempt)
        for candidate in self.committed():
            if candidate.step < before_step:
                shutil.rmtree(candidate.path)

    def remove(self) -> None:
        """Delete the tier of a run that has ended in good order."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
