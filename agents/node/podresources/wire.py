"""Takes protobuf messages apart, without generated code.

Contract: `fields` yields what is in a message in its order; a message that ends in the middle or is
otherwise no protobuf raises ValueError. Groups, which proto3 does not have, are not read.

Cost: about 1 us a field.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if at + index >= len(data):
            raise ValueError("a protobuf number that ends in the middle")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a protobuf number of more than ten bytes")


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield `(number, content)` of the fields that hold strings or messages; skip all others."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError(f"a protobuf field {number} that ends in the middle")
            yield number, data[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
            if at > len(data):
                raise ValueError(f"a protobuf field {number} that ends in the middle")
        else:
            raise ValueError(f"a protobuf field {number} of unknown type {kind}")


def string(number: int, text: str) -> bytes:
    """Return a string field."""
    data = text.encode()
    return _number(number << 3 | _BYTES) + _number(len(data)) + data


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
