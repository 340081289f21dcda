"""What can go wrong with a checkpoint; each is raised on all ranks with the same words."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved or restored."""


class SaveError(CheckpointError):
    """The step is not saved; the checkpoints before it are as they were."""


class NothingToRestore(CheckpointError):
    """The run has committed checkpoints before, and none of them is valid any more."""


class SplitViewError(CheckpointError):
    """Ranks see different files at the same path: a matter of the storage, not of a checkpoint."""


class RankError(CheckpointError):
    """A rank could not do its part; the message names it and its error."""
