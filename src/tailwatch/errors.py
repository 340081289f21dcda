"""The one exception that people see as a single line.

Contract: a command that gets bad input raises `UsageError`; the command line prints it as one
line (file, place, what was expected) and exits with 2. Nothing else is caught that way, so a
programming error still shows its traceback.
"""

from __future__ import annotations

from pathlib import Path


class UsageError(Exception):
    """Wrong usage or unreadable input.

    Args:
        message: what was found and what was expected, without a final newline.
        source: the file (or flag) it was found in.
        place: where in it, for example a field path such as `experiments[0].target.rank`.
    """

    def __init__(self, message: str, *, source: str | Path | None = None, place: str = "") -> None:
        where = f"{source}: " if source is not None else ""
        at = f"{place}: " if place else ""
        super().__init__(f"{where}{at}{message}".replace("\n", " "))
