"""Statistics a network driver keeps for itself: what `ethtool -S` prints.

Contract: `statistics(interface)` asks the kernel by ioctl and returns values by name; it raises
OSError for an interface that is not there or a driver without any. No program is started.

Cost: three ioctls; some drivers ask their device.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_GSSET_INFO, _GSTRINGS, _GSTATS = 0x37, 0x1B, 0x1D
_STATS_SET = 1
_NAME_BYTES = 32
_MOST = 4096


def statistics(interface: str) -> dict[str, int]:
    """Return the driver's statistics of an interface by name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        info = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _STATS_SET, 0))
        _ask(door, interface, info)
        mask, count = struct.unpack_from("=QI", info, 8)
        if not mask or not count or count > _MOST:
            return {}
        names = array.array("B", struct.pack("=III", _GSTRINGS, _STATS_SET, count))
        names.frombytes(bytes(_NAME_BYTES * count))
        _ask(door, interface, names)
        values = array.array("B", struct.pack("=II", _GSTATS, count))
        values.frombytes(bytes(8 * count))
        _ask(door, interface, values)
    text = bytes(names)[12:]
    found = struct.unpack_from(f"={count}Q", values, 8)
    return {
        text[i * _NAME_BYTES : (i + 1) * _NAME_BYTES]
        .partition(b"\0")[0]
        .decode("ascii", "replace"): v
        for i, v in enumerate(found)
    }


def _ask(door: socket.socket, interface: str, request: array.array[int]) -> None:
    address, _ = request.buffer_info()
    packed = struct.pack("16sP16x", interface.encode()[:15], address)
    fcntl.ioctl(door, _SIOCETHTOOL, packed)
