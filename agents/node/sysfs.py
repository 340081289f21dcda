"""Small files of the kernel: attributes as text, counters through descriptors that stay open.

Contract: an attribute that is not there is "". A counter file is opened once and read with `pread`;
when its directory was replaced (driver loaded anew, device plugged anew) all are opened again. Text
that is no number is no value.

Cost: one stat a directory and one pread a counter, about 1.3 us each; one descriptor a counter.
"""

from __future__ import annotations

import os
from pathlib import Path

_READ_BYTES = 64


def attribute(path: Path) -> str:
    """Return the text of a file without blanks around it; "" when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4096).decode(errors="replace").strip()
    except OSError:
        return ""


def linked_name(path: Path) -> str:
    """Return the last part of what a link points to; "" when there is no such link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def identity(path: Path) -> tuple[int, int]:
    """Return what differs once a directory was replaced; raise OSError when it is gone."""
    found = os.stat(path)
    return found.st_ino, found.st_dev


class OpenFile:
    """One small file; `read` returns the number in it, None when it holds none."""

    __slots__ = ("_descriptor", "name")

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int | None:
        """Read the file anew; raise OSError when that fails."""
        text = os.pread(self._descriptor, _READ_BYTES, 0)
        try:
            return int(text)
        except ValueError:
            return None

    def text(self) -> str:
        """Read the file anew and return its text without blanks around it."""
        return os.pread(self._descriptor, _READ_BYTES, 0).decode(errors="replace").strip()

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def names_in(path: Path) -> list[str]:
    """Return the names in a directory, sorted; raise OSError when it cannot be listed."""
    return sorted(os.listdir(path))
