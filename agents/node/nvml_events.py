"""Xid events from NVML, for all GPUs in one event set.

Contract: `read` never waits for an event; it takes those that are there. A GPU that is lost is left
out of the set and tried again every minute, so that it costs the others no event. NVML keeps no
history: what happened before the set was made is only in the kernel log.

Cost: one NVML call a read, one more an event.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, NamedTuple

from tailwatch.agents.node.base import SourceError
from tailwatch.agents.node.nvml.devices import bus_id
from tailwatch.agents.node.nvml.library import LOST, Library, NvmlError, leave, use

_XID_EVENT = 8
_MOST_EVENTS = 256
_AGAIN_SECONDS = 60.0


class XidEvent(NamedTuple):
    """One event; `device` is a PCI address as sysfs writes it."""

    xid: int
    device: str


class NvmlEvents:
    """The event set of this process.

    Args:
        library: path of libnvidia-ml.so; None leaves it to the loader.
    """

    def __init__(self, library: str | None) -> None:
        self._path = library
        self._library: Library | None = None
        self._set: Any = None
        self._count = 0
        self._devices: dict[int, str] = {}
        self._looked_at = 0.0

    def read(self) -> list[XidEvent]:
        """Return the events since the last call; raise SourceError when NVML gives none."""
        if self._library is None:
            self._library = use(self._path, self)
        library = self._library
        library.open()
        with library.turn("events"):
            if time.monotonic() - self._looked_at >= _AGAIN_SECONDS:
                self._look(library)
            return self._take(library)

    def _take(self, library: Library) -> list[XidEvent]:
        found: list[XidEvent] = []
        while self._set is not None and len(found) < _MOST_EVENTS:
            try:
                data = library.call("nvmlEventSetWait_v2", self._set, 0)
            except NvmlError as error:
                if error.code == "TIMEOUT":
                    break
                if error.code in LOST:
                    # Such a set gives nothing any more; the next one is made without that GPU.
                    self._free(library)
                    break
                raise
            if data.eventType == _XID_EVENT:
                device = self._devices.get(_pointer(data.device), "")
                found.append(XidEvent(int(data.eventData), device))
        return found

    def _look(self, library: Library) -> None:
        """Make the set anew when there are other GPUs than those in it."""
        count = library.call("nvmlDeviceGetCount")
        if self._set is None or count != self._count or len(self._devices) < count:
            self._free(library)
            self._set = library.call("nvmlEventSetCreate")
            self._count = count
            for index in range(count):
                self._add(library, index)
        self._looked_at = time.monotonic()
        if count and not self._devices:
            self._free(library)
            raise SourceError("NOT_SUPPORTED", "no GPU takes part in Xid events")

    def _add(self, library: Library, index: int) -> None:
        try:
            handle = library.call("nvmlDeviceGetHandleByIndex", index)
            address = library.call("nvmlDeviceGetPciInfo", handle).busId
            library.call("nvmlDeviceRegisterEvents", handle, _XID_EVENT, self._set)
        except NvmlError:
            return
        text = address.decode() if isinstance(address, bytes) else address
        self._devices[_pointer(handle)] = bus_id(text)

    def _free(self, library: Library) -> None:
        self._looked_at = 0.0
        self._devices = {}
        old, self._set = self._set, None
        if old is not None:
            library.call("nvmlEventSetFree", old)

    def close(self) -> None:
        """Give the set back, and NVML with it when nobody else uses it."""
        library, self._library = self._library, None
        if library is None:
            return
        try:
            self._free(library)
        except SourceError:
            self._set = None
        leave(library, self)


def _pointer(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
