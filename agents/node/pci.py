"""Where a device sits: PCI address, NUMA node, driver, its nearest GPUs, its network interface.

Contract: read from sysfs only; no device is asked. What is not known is "".

Cost: some ten small files a device, once per device, and one listing of PCI devices a discovery.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tailwatch.agents.node.sysfs import attribute, linked_name, names_in

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA = "0x10de"
_DISPLAY = "0x03"


class Place(NamedTuple):
    """Where one device sits."""

    pci: str
    numa: str
    driver: str
    vendor: str
    device: str
    path: str

    @classmethod
    def of(cls, device: Path) -> Place:
        """Return the place of the device a class entry's `device` link leads to."""
        real = os.path.realpath(device)
        address = os.path.basename(real)
        numa = attribute(device / "numa_node")
        return cls(
            pci=address if _ADDRESS.fullmatch(address) else "",
            numa="" if numa == "-1" else numa,
            driver=linked_name(device / "driver"),
            vendor=attribute(device / "vendor"),
            device=attribute(device / "device"),
            path=real,
        )


def gpus(sysfs: Path) -> list[Place]:
    """Return the NVIDIA GPUs on the PCI bus, by address; looked at anew when devices come or go."""
    bus = sysfs / "bus/pci/devices"
    try:
        return list(_gpus(bus, tuple(names_in(bus))))
    except OSError:
        return []


@functools.lru_cache(maxsize=1)
def _gpus(bus: Path, names: tuple[str, ...]) -> tuple[Place, ...]:
    return tuple(
        Place.of(bus / name)
        for name in names
        if attribute(bus / name / "vendor") == _NVIDIA
        and attribute(bus / name / "class").startswith(_DISPLAY)
    )


def nearest(place: Place, others: Iterable[Place]) -> list[str]:
    """Return the addresses of those that share the most bridges with `place`, at least one."""
    best: list[str] = []
    depth = 0
    for other in others:
        shared = _bridges(place.path, other.path)
        if shared > depth:
            best, depth = [], shared
        if shared and shared == depth:
            best.append(other.pci)
    return best


def _bridges(one: str, other: str) -> int:
    shared = [part for part in os.path.commonpath([one, other]).split("/") if part]
    return sum(1 for part in shared if _ADDRESS.fullmatch(part))


def interfaces(sysfs: Path) -> dict[str, str]:
    """Return the names of network interfaces by their MAC address."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in sorted((sysfs / "class/net").iterdir()):
            address = attribute(entry / "address")
            if address and address != "00:00:00:00:00:00":
                found[address] = entry.name
    return found


def mac_of_gid(gid: str) -> str:
    """Return the MAC address in a link-local GID (EUI-64); "" when it holds none.

    >>> mac_of_gid("fe80:0000:0000:0000:04cf:deff:fead:beef")
    '06:cf:de:ad:be:ef'
    """
    groups = gid.split(":")
    if len(groups) != 8 or groups[0] != "fe80":
        return ""
    try:
        raw = bytes.fromhex("".join(groups[4:]))
    except ValueError:
        return ""
    if len(raw) != 8 or raw[3:5] != b"\xff\xfe":
        return ""
    return bytes((raw[0] ^ 2, *raw[1:3], *raw[5:])).hex(":")
