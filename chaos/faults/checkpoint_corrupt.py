"""One byte of the newest verified checkpoint flips, then a rank is killed so that it is needed.

The damage is proven from outside: the block's digest on disk is not the manifest's. What the
trainer makes of it is not asked here.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from tailwatch.chaos.faults.fault import Facts, UndoMode, register
from tailwatch.chaos.faults.rank_kill import RankKill
from tailwatch.chaos.targets import Lost
from tailwatch.evidence import LedgerEntry
from tailwatch.integrity import (
    Candidate,
    block_digest,
    candidates,
    expected_digest,
    read_manifest,
)


def _set_aside(directory: Path) -> Path | None:
    """Return where a checkpoint was moved to when it was quarantined."""
    for candidate in candidates(directory.parent):
        if candidate.state == "quarantined" and candidate.name.startswith(f"{directory.name}."):
            return candidate.path
    return None


@register("checkpoint-corrupt")
class CheckpointCorrupt(RankKill):
    """Flips a byte in the middle of a tensor file of the newest checkpoint, then kills."""

    _known: int | None = None

    def resolve(self) -> Facts:
        """Freeze rank and pid, and the checkpoint that has just been verified."""
        facts = super().resolve()
        self.damage: Facts = {}
        self._choose()
        return facts | self.damage

    def ready(self) -> bool:
        """A checkpoint was verified a moment ago, and there is one before it to fall back to."""
        known, self._known = self._known, self._verified()
        fresh = known is not None and self._known > known
        return fresh and len(self._committed()) >= 2

    def _verified(self) -> int:
        return sum(event.kind == "checkpoint_verified" for event in self.run.read_events())

    def _committed(self) -> list[Candidate]:
        return [c for c in candidates(self.run.checkpoints) if c.state == "committed"]

    def _choose(self) -> None:
        committed = self._committed()
        if len(committed) < 2:
            raise Lost("target", "fewer than two committed checkpoints, none to fall back to")
        self.directory = committed[0].path
        manifest = read_manifest(self.directory)
        shards = sorted(name for name in manifest.files if name.endswith(".distcp"))
        generator = random.Random(committed[0].step)
        name = generator.choice(shards)
        entry = manifest.files[name]
        offset = entry.size // 2
        block = offset // entry.block_bytes
        path = self.directory / name
        with path.open("rb") as file:
            file.seek(offset)
            byte = file.read(1)[0]
        self.path, self.byte, self.offset = path, byte, offset
        self.damage = {
            "checkpoint": self.directory.name,
            "checkpoint_step": committed[0].step,
            "file": name,
            "block": block,
            "offset": offset,
            "expected": expected_digest(manifest, name, block),
        }

    def undo_action(self) -> tuple[str, Facts]:
        """Write the byte back, but only while the damaged block is still in that place."""
        return "restore-byte", {
            "file": str(self.path),
            "offset": self.offset,
            "byte": self.byte,
            "block": self.damage["block"],
            "expected": self.damage["expected"],
        }

    def inject(self) -> Facts:
        """Flip the lowest bit of the byte, make it durable, and kill the rank."""
        newest = self._committed()[0]
        if newest.path != self.directory:
            raise Lost("target", f"{newest.path.name} is newer than {self.directory.name} by now")
        with self.path.open("r+b") as file:
            file.seek(self.offset)
            file.write(bytes([self.byte ^ 1]))
            file.flush()
            os.fsync(file.fileno())
        self.damage["found"] = block_digest(self.path, self.damage["block"])
        return super().inject() | self.damage

    def seen(self) -> Facts | None:
        """The bytes on disk, here or set aside, are not the manifest's, and the rank is gone."""
        gone = super().seen()
        if gone is None:
            return None
        moved = _set_aside(self.directory)
        path = (moved or self.directory) / self.damage["file"]
        try:
            found = block_digest(path, self.damage["block"])
        except OSError:
            return None
        if found == self.damage["expected"]:
            return None
        return gone | self.damage | {"found": found}

    def undo(self, entry: LedgerEntry) -> UndoMode:
        """Restore the byte if the damaged checkpoint still stands; set aside, it is nobody's."""
        settled = self.context.ledger.undo(entry)
        if settled.state != "undone":
            return "failed"
        return "done" if settled.reason == "byte restored" else "none"

    def undo_seen(self) -> Facts | None:
        """No damaged block stands under a name that would be loaded."""
        if self.path.exists():
            digest = block_digest(self.path, self.damage["block"])
            return {"restored": True} if digest == self.damage["expected"] else None
        moved = _set_aside(self.directory)
        return {"quarantined_as": moved.name if moved else None}
