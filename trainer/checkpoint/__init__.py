"""Checkpoints of a training job that cannot lie: torch DCP files, `tailwatch.integrity` around.

Public face: `CheckpointStore`, what it returns and what it raises. Importing this imports
`torch.distributed.checkpoint` (half a second), so a launcher can do it before it forks ranks.
"""

from tailwatch.trainer.checkpoint.errors import (
    CheckpointError,
    NothingToRestore,
    RankError,
    SaveError,
    SplitViewError,
)
from tailwatch.trainer.checkpoint.examine import Refusal
from tailwatch.trainer.checkpoint.loading import Restored
from tailwatch.trainer.checkpoint.memory import MemoryTier
from tailwatch.trainer.checkpoint.store import CheckpointStore, Emit

__all__ = [
    "CheckpointError",
    "CheckpointStore",
    "Emit",
    "MemoryTier",
    "NothingToRestore",
    "RankError",
    "Refusal",
    "Restored",
    "SaveError",
    "SplitViewError",
]
