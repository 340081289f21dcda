"""Keeps how far a log has been counted, so that the next process counts nothing twice.

Contract: what cannot be read is as good as not there; what cannot be written is said once, and the
log is read all the same (only a restart would count from an older position).

Cost: one durable write a save.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tailwatch.agents.service import log
from tailwatch.files import write_durably

_C = TypeVar("_C", bound=msgspec.Struct)


class CursorFile(Generic[_C]):
    """A file with one position.

    Args:
        path: the file.
        kind: the structure in it.
    """

    def __init__(self, path: Path, kind: type[_C]) -> None:
        self._path = path
        self._kind = kind
        self._failed = False

    def load(self) -> _C | None:
        """Return the position an earlier process has left; None without any."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=self._kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def save(self, position: _C) -> bool:
        """Keep a position; return whether that went well."""
        try:
            write_durably(self._path, msgspec.json.encode(position))
        except OSError as error:
            if not self._failed:
                log(f"{self._path}: the position in a log cannot be kept: {error}")
            self._failed = True
            return False
        return True
