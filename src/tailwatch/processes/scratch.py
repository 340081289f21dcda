"""Scratch directories that may be removed by a process that did not make them.

Contract: `remove_scratch` removes a directory only when all of this holds: its real path lies
strictly below one of the places for scratch, and it holds a marker file with this run's token, or
nothing at all.
The marker goes last, so that a removal that was cut short can be repeated.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

MARKER = ".tailwatch-scratch"


def make_scratch(path: Path, token: str) -> Path:
    """Make the directory `path`, marked as scratch of the run with this token; return it."""
    path.mkdir(parents=True)
    (path / MARKER).write_text(token, encoding="utf-8")
    return path


def scratch_places() -> list[Path]:
    """Return the directories below which scratch may lie."""
    return [Path(os.path.realpath(p)) for p in ("/dev/shm", "/tmp", tempfile.gettempdir())]


def scratch_path(token: str, need_bytes: int) -> Path:
    """Return where a run's scratch is to lie: on tmpfs if it has `need_bytes` free, else on disk.

    A container's /dev/shm is often 64 MB, and one that fills up would stop the ranks.
    """
    memory = Path("/dev/shm")
    try:
        space = os.statvfs(memory)
        fits = space.f_bavail * space.f_frsize >= need_bytes and os.access(memory, os.W_OK)
    except OSError:
        fits = False
    return (memory if fits else Path(tempfile.gettempdir())) / f"tailwatch-{token}"


def remove_scratch(path: Path, token: str, *, also_below: Sequence[Path] = ()) -> str:
    """Remove a scratch directory; return an empty string, or why it was left.

    A directory that does not exist is removed already. `also_below` names further places, for
    example the run directory.
    """
    real = Path(os.path.realpath(path))
    places = [*scratch_places(), *(Path(os.path.realpath(p)) for p in also_below)]
    if not real.exists():
        return ""
    if not any(place in real.parents for place in places):
        return f"{real}: not below {', '.join(str(p) for p in places)}"
    try:
        names = os.listdir(real)
        mark = (real / MARKER).read_text(encoding="utf-8") if MARKER in names else None
        # Its maker may have been killed before it was marked; what holds nothing is no loss.
        if names and not (names == [MARKER] and mark == ""):
            if mark is None:
                return f"{real}: not marked as scratch"
            if mark != token:
                return f"{real}: marked by another run"
        for entry in os.scandir(real):
            if entry.name == MARKER:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        (real / MARKER).unlink(missing_ok=True)
        real.rmdir()
    except FileNotFoundError:  # somebody else removes it too
        return remove_scratch(real, token, also_below=also_below)
    except OSError as error:
        return f"{real}: {error}"
    return ""
