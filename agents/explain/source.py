"""Lines of a file or of stdin, whatever they are.

Contract: memory stays bounded whatever the length of a line: what is past `LONGEST_BYTES` of it is
read and dropped. Bytes that are no UTF-8 become a replacement character. Input that is binary, and
input without a line, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from tailwatch.errors import UsageError

LONGEST_BYTES = 16_384
_BLOCK = 1 << 20
_MAGIC = (b"\x1f\x8b", b"PK\x03\x04", b"\x7fELF", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ", b"PAR1")


def read_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Return the lines of a file without their ends.

    Raises:
        UsageError: it is binary, or there is no line in it.
    """
    seen = False
    kept = bytearray()
    first = True
    while block := file.read(_BLOCK):
        if first:
            _refuse_binary(block, name)
            first = False
        *whole, rest = block.replace(b"\r\n", b"\n").split(b"\n")
        for piece in whole:
            kept += piece[: LONGEST_BYTES - len(kept)]
            line = _text(kept)
            kept.clear()
            seen = seen or bool(line.strip())
            yield line
        kept += rest[: LONGEST_BYTES - len(kept)]
    if kept:
        seen = seen or bool(kept.strip())
        yield _text(kept)
    if not seen:
        raise UsageError("no line in it; expected a log", source=name)


def _text(line: bytearray) -> str:
    # What a progress bar wrote over itself is gone for whoever sees the screen.
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    return shown.decode("utf-8", errors="replace")


def _refuse_binary(block: bytes, name: str) -> None:
    head = block[:65_536]
    controls = sum(byte < 9 or 13 < byte < 27 for byte in head)
    if head.startswith(_MAGIC) or b"\x00\x00" in head or controls * 50 > len(head):
        raise UsageError("binary; expected the text of a log", source=name)
