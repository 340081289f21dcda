"""The source `xid`: what the kernel log and NVML tell of GPUs, NVSwitches, EFA and mlx5 devices.

Contract: an event is counted once, whoever told of it; what happened before the agent was first
started shows in the time of the last event and is counted nowhere. An agent that is started again
goes on where the log was counted to (`<log>/<node>.kmsg`), so nothing is counted twice and nothing
that happened meanwhile is missed. Only what the kernel itself wrote is believed; a text that
somebody wrote into the log is not. With `--fabricmanager.log` the log of NVIDIA's fabric manager is
a third reporter. The series stay while at least one of them tells something.

Cannot see: what was overwritten in the kernel's ring before it was read (counted as lost), and NVML
events from before this process registered for them.

Cost: 5 us a record of the log, two reads a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from tailwatch.agents.node.base import NodeConfig, Part, register
from tailwatch.agents.node.fabric_manager import FabricManagerLog
from tailwatch.agents.node.kernel_log import KernelLog
from tailwatch.agents.node.kmsg import open_kmsg
from tailwatch.agents.node.ledger import Ledger
from tailwatch.agents.node.nvml_events import NvmlEvents
from tailwatch.exposition import Snapshot

_FRESH_SECONDS = 10.0


class _Nvml:
    """The part that takes NVML's events."""

    key = "nvml"

    def __init__(self, config: NodeConfig, ledger: Ledger) -> None:
        self._ledger = ledger
        self._events = NvmlEvents(config.nvml_library)
        self.succeeded_at: float | None = None

    def read(self) -> None:
        now = time.time()
        events = self._events.read()
        for event in events:
            finding = self._ledger.lines.xid(str(event.xid), event.device)
            self._ledger.count(finding, now, "nvml")
        if events:
            self._ledger.publish()
        self.succeeded_at = time.monotonic()

    def add_to(self, snapshot: Snapshot) -> None:
        """Add nothing: what all parts count belongs to the source."""

    def close(self) -> None:
        self._events.close()


@register
class XidCollector:
    """Counts what happened to the devices of a node."""

    name: ClassVar[str] = "xid"
    interval: ClassVar[float] = 0.5
    deadline: ClassVar[float] = 2.0

    def __init__(
        self,
        config: NodeConfig,
        *,
        opener: Callable[[Path], int] = open_kmsg,
        reader: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._config = config
        self._node = config.node
        self._ledger = Ledger(config)
        kernel = KernelLog(config, self._ledger, opener, reader)
        self._parts: list[KernelLog | FabricManagerLog | _Nvml] = [kernel]
        if config.fabricmanager_log is not None:
            path = config.fabricmanager_log
            self._parts.append(FabricManagerLog(config, self._ledger, path))
        self._with_nvml = False

    def discover(self) -> Sequence[Part]:
        self._ledger.find_devices()
        if not self._with_nvml and self._ledger.gpus:
            self._with_nvml = True
            self._parts.append(_Nvml(self._config, self._ledger))
        return tuple(self._parts)

    def add_to(self, snapshot: Snapshot) -> None:
        told = [part.succeeded_at for part in self._parts]
        if not any(at is not None and time.monotonic() - at < _FRESH_SECONDS for at in told):
            return
        counted, node = self._ledger.counted, self._node
        for (kind, device, code, severity), count in counted.events:
            self._add_events(snapshot, kind, count, device, code, severity)
        for incident, count in counted.incidents:
            snapshot.add("tailwatch_kernel_incidents_total", count, node=node, **incident._asdict())
        for series, last in counted.last:
            snapshot.add(
                "tailwatch_kernel_last_event_timestamp_seconds", last.time,
                node=node, **series._asdict(), action=last.action,
            )  # fmt: skip

    def _add_events(
        self, snapshot: Snapshot, kind: str, count: int, device: str, code: str, severity: str
    ) -> None:
        labels = {"node": self._node, "device": device, "severity": severity}
        if kind == "xid":
            snapshot.add("tailwatch_xid_events_total", count, **labels, xid=code)
        elif kind == "sxid":
            snapshot.add("tailwatch_sxid_events_total", count, **labels, sxid=code)
        else:
            snapshot.add("tailwatch_kernel_events_total", count, **labels, kind=kind, code=code)

    def close(self) -> None:
        """Do nothing: each part closes its own."""
