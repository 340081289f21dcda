"""The content of one file of dumps, as plain data.

Contract: a pickle that wants a class, or anything but dicts, lists, strings and numbers, is
refused before that class is looked up; so is everything that is neither pickle nor JSON. A file
without bytes is no dump but says something: `load` returns None for it.
"""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any, NoReturn

from tailwatch.errors import UsageError

LARGEST = 1 << 30
"""Bytes of a file; a recorder of 20,000 entries with stacks stays below a tenth of it."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it wants {module_name}.{global_name}")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise pickle.UnpicklingError("it wants an object from outside")


def load(path: Path) -> Any:
    """Return what a file holds, None when it is empty.

    Raises:
        UsageError: it cannot be read, is cut, is of another kind, or wants classes.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UsageError(
                f"{size} bytes; expected a dump of at most {LARGEST} bytes", source=path
            )
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{error.strerror}; expected a dump", source=path) from error
    if not data.strip():
        return None
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return json.loads(data, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{error}; expected JSON", source=path) from error
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    # A file that was cut or forged fails in any way that an interpreter of opcodes can fail.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise UsageError(
            f"{reason}; expected a flight recorder dump (pickle of plain data, or JSON)",
            source=path,
        ) from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
