"""A rank is killed with SIGKILL: no handler, no last words."""

from __future__ import annotations

import os
import signal

from tailwatch.chaos.faults.fault import Facts, Fault, UndoMode, register
from tailwatch.chaos.targets import Lost
from tailwatch.evidence import LedgerEntry
from tailwatch.processes import same_process


@register("rank-kill")
class RankKill(Fault):
    """Kills one rank; the restart is the job's own business, so there is nothing to undo."""

    def resolve(self) -> Facts:
        """Freeze rank, node and pid."""
        self.process = self.rank_process()
        return self.frozen(self.process)

    def undo_action(self) -> tuple[str, Facts]:
        """Nothing: a dead process is replaced by its launcher."""
        return "none", {"pid": self.process.pid, "start_ticks": self.process.start_ticks}

    def inject(self) -> Facts:
        """Kill it, if it is still the process that was chosen."""
        if not same_process(self.process.pid, self.process.start_ticks):
            raise Lost("target", f"rank {self.process.rank} was gone before it was killed")
        os.kill(self.process.pid, signal.SIGKILL)
        return {"signal": "SIGKILL", "pid": self.process.pid}

    def seen(self) -> Facts | None:
        """The process is gone."""
        if same_process(self.process.pid, self.process.start_ticks):
            return None
        return {
            "pid": self.process.pid,
            "start_ticks": self.process.start_ticks,
            "gone": True,
        }

    def reacted(self) -> bool:
        """A new attempt trains."""
        return self.restarted()

    def undo(self, entry: LedgerEntry) -> UndoMode:
        """Close the entry: nothing of ours is left."""
        return "none" if super().undo(entry) == "done" else "failed"

    def undo_seen(self) -> Facts | None:
        """The killed process has been reaped and the new attempt trains."""
        return {"attempt": self.newest_attempt().attempt} if self.restarted() else None
