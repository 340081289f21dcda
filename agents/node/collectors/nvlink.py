"""The source `nvlink`: bytes, errors and active links of each GPU.

Contract: one part a GPU. Bytes are cumulative (NVML calls them throughput and counts KiB up to
Hopper); errors bear the names their generation gives them. A GPU without NVLink, or in MIG mode,
has no series and no fault: no link is not zero links. Series of single links only when asked for.

Cost: two NVML calls a GPU and read (field batches), five every sixth read. A batch is as long as
the counters of the generation times the links: 36 fields on Blackwell, 2 on Hopper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tailwatch.agents.node.base import NodeConfig, register
from tailwatch.agents.node.nvml.calls import DeviceCalls
from tailwatch.agents.node.nvml.devices import DeviceList, Found, instance_of
from tailwatch.agents.node.nvml.library import Library, leave, use
from tailwatch.agents.node.nvml.links import BYTES, ERRORS, LINK_COUNT, Ladder, active_links
from tailwatch.agents.node.nvml.part import NvmlPart
from tailwatch.agents.node.nvml.reading import Sample
from tailwatch.exposition import Snapshot


class NvlinkPart(NvmlPart):
    """The links of one GPU."""

    def __init__(self, library: Library, config: NodeConfig, found: Found) -> None:
        super().__init__(library, config.node, NvlinkCollector.name, found)
        self._per_link = config.nvlink_per_link
        known = instance_of(config)
        self._expected = known.nvlinks if known is not None else None
        self._was_active = False
        self._links = 0
        self._slow: list[Sample] = []
        self._begin_ladders()

    def _begin_ladders(self) -> None:
        self._bytes = Ladder(BYTES, self._per_link)
        self._errors = Ladder(ERRORS, self._per_link)

    def read_device(self, calls: DeviceCalls, slow: bool) -> list[Sample]:
        if slow or not self._links:
            self._links = 0 if self.in_mig_mode(calls) else self._count(calls)
            self._slow = self._read_slow(calls) if self._links else []
        if not self._links:
            return []
        return [*self._slow, *self._counters(calls, self._bytes, "bytes", "direction")]

    def _count(self, calls: DeviceCalls) -> int:
        return int(calls.fields([LINK_COUNT]).get(LINK_COUNT, 0))

    def _read_slow(self, calls: DeviceCalls) -> list[Sample]:
        found = self._counters(calls, self._errors, "errors", "kind")
        active = active_links(calls, self._links)
        self._was_active |= any(active.values())
        if self._per_link:
            found += [
                Sample("tailwatch_nvlink_link_active", int(up), (("link", str(link)),))
                for link, up in active.items()
            ]
        counts = {"expected": self._expected}
        if self._expected is None and self._was_active:
            counts["expected"] = self._links
        # The count of those that tell would look like links that are down.
        counts["active"] = sum(active.values()) if len(active) == self._links else None
        return found + [
            Sample("tailwatch_nvlink_links", count, (("state", state),))
            for state, count in counts.items()
            if count is not None
        ]

    def _counters(self, calls: DeviceCalls, ladder: Ladder, what: str, label: str) -> list[Sample]:
        whole, by_link = ladder.read(calls, self._links)
        found = [
            Sample(f"tailwatch_nvlink_{what}_total", value, ((label, name),))
            for name, value in whole.items()
        ]
        if self._per_link:
            found += [
                Sample(
                    f"tailwatch_nvlink_link_{what}_total",
                    value,
                    (("link", str(link)), (label, name)),
                )
                for (name, link), value in by_link.items()
            ]
        return found

    def let_go(self) -> None:
        self._begin_ladders()


@register
class NvlinkCollector:
    """Finds the GPUs whose links are read."""

    name: ClassVar[str] = "nvlink"
    interval: ClassVar[float] = 5.0
    deadline: ClassVar[float] = 2.0

    def __init__(self, config: NodeConfig) -> None:
        self._library = use(config.nvml_library, self)
        self._devices = DeviceList(
            self._library, lambda found: NvlinkPart(self._library, config, found)
        )

    def discover(self) -> Sequence[NvlinkPart]:
        return self._devices.look()

    def add_to(self, snapshot: Snapshot) -> None:
        """Nothing: which GPUs are missing or lost, the source `gpu` says."""

    def close(self) -> None:
        leave(self._library, self)
