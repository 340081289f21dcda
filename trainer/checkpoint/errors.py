"""What can go wrong with a checkpoint; each is raised on all ranks with the same words."""

from __future__ import annotations

import errno

REASONS = {
    errno.ENOSPC: "no space",
    errno.EDQUOT: "no space",
    errno.EFBIG: "no space",
    errno.EIO: "input/output error",
    errno.EROFS: "read-only",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
}


def reason_of(error: BaseException | None) -> str:
    """Return the plain word for an error of the system, `other` when there is none."""
    return REASONS.get(getattr(error, "errno", None) or 0, "other")


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved or restored; `reason` is a plain word, for counting."""

    def __init__(self, message: str, *, reason: str = "other") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, {"reason": self.reason})


class SaveError(CheckpointError):
    """The step is not saved; the checkpoints before it are as they were."""


class NothingToRestore(CheckpointError):
    """The run has committed checkpoints before, and none of them is valid any more."""


class SplitViewError(CheckpointError):
    """Ranks see different files at the same path: a matter of the storage, not of a checkpoint."""


class RankError(CheckpointError):
    """A rank could not do its part; the message names it and its error."""
