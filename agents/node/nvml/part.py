"""A part of a collector that reads one GPU through NVML.

Contract: `read` takes its turn in NVML and keeps the samples of a good read as one tuple. `lost` is
what the last read said: True when the GPU does not answer any more, False when it was read, None
when that is not known.

Cost: that of what `read_device` asks.
"""

from __future__ import annotations

import threading
import time

from tailwatch.agents.node.base import ResetWatch, SourceError
from tailwatch.agents.node.nvml.calls import DeviceCalls
from tailwatch.agents.node.nvml.devices import Found
from tailwatch.agents.node.nvml.library import LOST, Library
from tailwatch.agents.node.nvml.reading import Sample
from tailwatch.exposition import Snapshot

SLOW_EVERY = 6
"""What changes rarely is read once in so many reads."""


class NvmlPart:
    """One GPU of one source; a source says in `read_device` what it reads of it."""

    def __init__(self, library: Library, node: str, source: str, found: Found) -> None:
        self.key = found.uuid or f"gpu-{found.number}"
        self.found = found
        self.resets = ResetWatch()
        self.lost: bool | None = None
        self.read_at = 0.0
        self.library = library
        self._node = node
        self._source = source
        self._busy = threading.Lock()
        self._calls: DeviceCalls | None = None
        self._reads = 0
        self._mig_mode: bool | None = None
        self._kept: tuple[tuple[Sample, ...], dict[tuple[str, str], int]] = ((), {})

    def read_device(self, calls: DeviceCalls, slow: bool) -> list[Sample]:
        """Return what the GPU answers; `slow` when it is time for what changes rarely."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Give back what belongs to the handle in use; it may be used no more."""

    def read(self) -> None:
        with self._busy, self.library.turn(self.key):
            try:
                calls = self._begin()
                slow = self._reads % SLOW_EVERY == 0
                samples = self.read_device(calls, slow)
                calls.end()
            except SourceError as error:
                self.lost = True if error.code in LOST else None
                # Whatever it is when it answers again, it is asked everything.
                self._reads = 0
                raise
            self._reads += 1
            self._kept = tuple(samples), dict(calls.errors)
            self.resets.see(
                {f"{s.name}{s.labels}": s.value for s in samples if s.name.endswith("_total")}
            )
            self.lost = False
            self.read_at = time.monotonic()

    def _begin(self) -> DeviceCalls:
        handle = self.found.handle
        if handle is None:
            handle = self.library.call("nvmlDeviceGetHandleByIndex", self.found.number)
            self.found = self.found._replace(handle=handle)
        if self._calls is None or self._calls.handle is not handle:
            self.let_go()
            self._calls = DeviceCalls(self.library, handle)
            self._calls.errors.update(self._kept[1])
            self._reads = 0
        self._calls.begin()
        return self._calls

    def in_mig_mode(self, calls: DeviceCalls) -> bool | None:
        """Return whether it is in MIG mode, None when it knows none; a change begins anew."""
        answer = calls.ask("nvmlDeviceGetMigMode")
        mode = None if answer is None else bool(answer[0])
        if mode != self._mig_mode:
            calls.forget()
            self.let_go()
            self._mig_mode = mode
        return mode

    def add_to(self, snapshot: Snapshot) -> None:
        labels = {"node": self._node, "uuid": self.found.uuid}
        samples, errors = self._kept
        for name, value, own in samples:
            snapshot.add(name, value, **labels, **dict(own))
        for (call, code), count in sorted(errors.items()):
            snapshot.add(
                "tailwatch_nvml_call_errors_total",
                count,
                **labels,
                source=self._source,
                call=call,
                code=code,
            )

    def close(self) -> None:
        # What a read that hangs uses goes with the process.
        if self._busy.acquire(blocking=False):
            self.let_go()
            self._calls = None
            self._busy.release()
