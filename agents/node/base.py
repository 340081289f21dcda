"""What a source of the node agent has to offer.

Contract: a collector finds the parts of its source (devices, files, sockets); a part is read on its
own, may block and may fail without costing any other part its series. What a part read it keeps as
one immutable value, and adds samples from the last good one only. Missing is left out, never 0. A
counter that falls is exported as it is and counted as a reset.

`@register` makes a collector known; a file in `collectors/` is all it takes.
"""

from __future__ import annotations

import errno
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import msgspec

from tailwatch.agents.node.fabric_load import FabricLoad
from tailwatch.exposition import Snapshot

HOLDS_DEVICES = frozenset({"efa", "infiniband", "gpu", "nvlink", "processes", "xid"})
"""Sources that `pause` makes let go of their handles; the others go on."""


class NodeConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What the node agent was told; each flag is one field, and `load` is what sources share.

    Attributes:
        node: name of this node, the label on every sample.
        rings, log: where the ranks' rings lie and where the step log goes.
        sysfs, procfs, kmsg, podresources: where the kernel's and kubelet's files are.
        nvml_library: path of libnvidia-ml.so; None leaves it to the loader.
        instance_type: the EC2 instance type; None when it is not known.
        nvlink_per_link: series for each link and not only for each GPU.
        canary_peers: `name=host:port` of other nodes' canaries.
        canary_listen: `host:port` the canary of this node answers on.
        line_overrides: a file of other severities and actions for kernel lines.
        fabricmanager_log: the log of NVIDIA's fabric manager; None reads none.
        load: what is known of the traffic of the node.
    """

    node: str
    rings: Path = Path("/run/tailwatch/rings")
    log: Path = Path("/var/lib/tailwatch")
    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    nvml_library: str | None = None
    kmsg: Path = Path("/dev/kmsg")
    podresources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    instance_type: str | None = None
    nvlink_per_link: bool = False
    canary_peers: tuple[str, ...] = ()
    canary_listen: str | None = None
    line_overrides: Path | None = None
    fabricmanager_log: Path | None = None
    load: FabricLoad = msgspec.field(default_factory=FabricLoad)


# A file that is missing for a while may come back lower; labels that come and go are forgotten.
_FORGET_ABOVE = 64


class SourceError(Exception):
    """A read failed; `code` is one short word of a closed set and becomes a label value."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class NeedsNewProcess(SourceError):
    """A read failed in a way that only a new process can get over; the agent ends with 1."""


def code_of(error: Exception) -> str:
    """Return the label value for an error: the code of a SourceError, the name of an errno."""
    if isinstance(error, SourceError):
        return error.code
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, "OSError")
    return "OSError" if isinstance(error, OSError) else "internal"


class ResetWatch:
    """Counts the reads in which a counter fell.

    >>> watch = ResetWatch()
    >>> watch.see({"tx_bytes": 7, "rx_bytes": 5})
    >>> watch.see({"tx_bytes": 0, "rx_bytes": 0})
    >>> watch.count
    1
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: dict[str, float] = {}
        self._names: tuple[str, ...] = ()
        self._row: tuple[float, ...] = ()

    def see(self, counters: Mapping[str, float]) -> None:
        """Take the values of one read; several that fell in it are one reset."""
        last = self._last
        if counters.keys() == last.keys():
            fell = any(map(operator.lt, counters.values(), map(last.__getitem__, counters)))
        else:
            fell = any(value < last.get(name, value) for name, value in counters.items())
        self.count += fell
        last.update(counters)
        if len(last) > 2 * len(counters) + _FORGET_ABOVE:
            self._last = dict(counters)

    def see_row(self, names: tuple[str, ...], values: tuple[float, ...]) -> None:
        """Do as `see`, which no longer serves; cheap as long as `names` is the same object."""
        if names is self._names:
            self.count += any(map(operator.lt, values, self._row))
        else:
            self._last.update(zip(self._names, self._row, strict=True))
            self.see(dict(zip(names, values, strict=True)))
            self._names = names
        self._row = values


class Part(Protocol):
    """One device, file or socket of a source.

    `read` is never called twice at the same time, but not always from the same thread. A part that
    hands on counters has an attribute `resets: ResetWatch` besides, exported with its health.
    """

    key: str

    def read(self) -> None:
        """Read it, however long that takes; raise OSError or SourceError when it fails."""

    def add_to(self, snapshot: Snapshot) -> None:
        """Add the samples of the last good read; never blocks, never raises."""

    def close(self) -> None:
        """Let go of it."""


class Collector(Protocol):
    """One source; `key` of its parts is the label `device` of its health, "" the whole source.

    Attributes:
        name: the value of the label `source`, and of the flag `--collector.<name>`.
        interval: seconds between two reads of a part.
        deadline: seconds after which a read counts as hung.
    """

    name: ClassVar[str]
    interval: ClassVar[float]
    deadline: ClassVar[float]

    def __init__(self, config: NodeConfig) -> None: ...

    def discover(self) -> Sequence[Part]:
        """Return the parts there are, the same object for one that was there before.

        May block like a read, and raise what a read may raise.
        """

    def add_to(self, snapshot: Snapshot) -> None:
        """Add samples about the source as a whole; never blocks, never raises."""

    def close(self) -> None:
        """Let go of what the parts have in common; called after their `close`."""


_C = TypeVar("_C", bound=type[Collector])

COLLECTORS: dict[str, type[Collector]] = {}
"""Every collector there is, by name."""


def register(collector: _C) -> _C:
    """Make a collector known under its name."""
    assert collector.name not in COLLECTORS, collector.name
    COLLECTORS[collector.name] = collector
    return collector
