"""Which GPUs there are, whether NVML can reach each, and how many there should be.

Contract: a GPU is known by its UUID, and keeps its part of a collector for as long as it is listed;
one that answers no more keeps the identity it had. One whose UUID was never seen is called
`gpu-<index>`, also when it answers later. How many there should be never comes from NVML alone: a
driver that was loaded after a GPU had died does not know of it.

Cost: two NVML calls a device and look.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tailwatch.agents.node.base import NodeConfig
from tailwatch.agents.node.nvml.library import Library, NvmlError
from tailwatch.agents.node.pci import gpus
from tailwatch.instances import Instance, instance, this_instance


class Found(NamedTuple):
    """One GPU as it is listed: its place, its UUID ("" unknown), its handle (None: refused)."""

    number: int
    uuid: str
    handle: Any


class HasFound(Protocol):
    """A part of a collector that belongs to one GPU."""

    key: str
    found: Found


_P = TypeVar("_P", bound=HasFound)


class DeviceList(Generic[_P]):
    """The parts of a collector, one for each GPU that NVML lists."""

    def __init__(self, library: Library, make: Callable[[Found], _P]) -> None:
        self._library = library
        self._make = make
        self._by_key: dict[str, _P] = {}
        self.listed: int | None = None
        self._most = 0

    def look(self) -> list[_P]:
        """Ask NVML for its devices; raise SourceError when it does not tell."""
        self._library.open()
        with self._library.turn("") as visit:
            count = self._library.call("nvmlDeviceGetCount")
            by_index = {part.found.number: part for part in self._by_key.values()}
            parts = []
            for index in range(count):
                known = by_index.get(index)
                visit.device = known.key if known else f"gpu-{index}"
                parts.append(self._part(index, known))
        for key in self._by_key.keys() - {part.key for part in parts}:
            self._library.forget(key)
        self._by_key = {part.key: part for part in parts}
        self.listed = count
        self._most = max(self._most, count)
        return parts

    def _part(self, index: int, known: _P | None) -> _P:
        try:
            handle = self._library.call("nvmlDeviceGetHandleByIndex", index)
            uuid = self._library.call("nvmlDeviceGetUUID", handle)
        except NvmlError:
            # The read of the part says why it does not answer.
            return known if known is not None else self._make(Found(index, "", None))
        found = Found(index, uuid, handle)
        part = next((p for p in self._by_key.values() if p.found.uuid == uuid), None)
        if part is None and known is not None and not known.found.uuid:
            part = known
        if part is None:
            return self._make(found)
        if part.found.handle is not None and _address(part.found.handle) == _address(handle):
            found = found._replace(handle=part.found.handle)
        part.found = found
        return part

    def expected(self, config: NodeConfig) -> int | None:
        """Return how many there should be: by instance type, else the most ever there."""
        known = instance_of(config)
        if known is not None and known.gpus is not None:
            return known.gpus
        return max(self._most, len(gpus(config.sysfs))) or None


def instance_of(config: NodeConfig) -> Instance | None:
    """Return what the instance type of this node has; None when it is not known."""
    return instance(config.instance_type or this_instance(config.sysfs))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def bus_id(text: str) -> str:
    """Return a PCI address as sysfs writes it.

    >>> bus_id("00000000:A8:00.0")
    '0000:a8:00.0'
    """
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}"
