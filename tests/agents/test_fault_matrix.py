"""Every fault on one device and on all of them: what is well stays whole, what is sick is named.

Each test is one cell, `<fault>-<scope>`. Faults that belong to no device (kernel log, kubelet) have
every RDMA device hanging beside them in the scope `all`; without the library, `all` is a node where
kubelet is missing, too.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.agents import Samples
from support.kubelet import grpc
from support.nvml.fixtures import uuid_of, value, values
from support.procs import eventually
from support.sick import DEADLINE, INTERVAL
from support.sysfs import write
from support.wholenode import WholeNode, steady_series

GPUS = [uuid_of(index) for index in range(8)]
SICK = 5
NVML = ("gpu", "nvlink", "processes")
# Ten times what it should take.
SEEN_WITHIN = 10 * (INTERVAL + DEADLINE)
XID = "NVRM: Xid (PCI:0000:53:00): 48, pid=1, name=python, DBE"


class Part(NamedTuple):
    """A part of a source, as its health names it."""

    source: str
    device: str


class Sick(NamedTuple):
    """What a fault does.

    Attributes:
        begin, end: bring it on and take it away.
        codes: the parts that are down, and the error code each shows.
        hidden: whether a series, by name and labels, may be missing meanwhile.
        more: what else has to hold.
    """

    begin: Callable[[], object]
    end: Callable[[], object]
    codes: dict[Part, str]
    hidden: Callable[[str, dict[str, str]], bool]
    more: Callable[[Samples], object] = lambda said: True


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    """A node with every source, under a running agent."""
    made = WholeNode(tmp_path_factory.mktemp("node"))
    made.settle()
    yield made
    made.close()


def rdma_part(device: str) -> Part:
    """Return the part that reads the ports of an RDMA device."""
    return Part("infiniband" if device.startswith("mlx5") else "efa", device)


def of_devices(*devices: str) -> Callable[[str, dict[str, str]], bool]:
    """Return what tells the series of these devices."""
    return lambda name, labels: labels.get("device") in devices or labels.get("uuid") in devices


def of_sources(*prefixes: str) -> Callable[[str, dict[str, str]], bool]:
    """Return what tells the metrics with these prefixes."""
    return lambda name, labels: name.startswith(prefixes)


def rules(devices: list[str], action: str) -> list[str]:
    """Return the rules for the port counters of RDMA devices."""
    kinds = ("counters/", "hw_c")
    return [f"/infiniband/{d}/ports/1/{kind} {action}" for d in devices for kind in kinds]


def some(node: WholeNode, scope: str) -> list[str]:
    """Return the RDMA devices of a scope: one of each source, or all."""
    return node.rdma if scope == "all" else [node.rdma[-1], node.rdma[0]]


def reads_fail(node: WholeNode, scope: str, action: str) -> Sick:
    """Reads of port counters fail or hang."""
    devices = some(node, scope)
    code = "hung" if action == "HANG" else action
    return Sick(
        begin=lambda: node.sicken(*rules(devices, action)),
        end=node.sicken,
        codes={rdma_part(device): code for device in devices},
        hidden=of_devices(*devices),
    )


def vanishes(node: WholeNode, scope: str) -> Sick:
    """Devices are gone from sysfs."""
    devices = some(node, scope)
    links = [node.folder / "sys/class/infiniband" / device for device in devices]
    aside = node.folder / "aside"

    def begin() -> None:
        aside.mkdir()
        for link in links:
            link.rename(aside / link.name)

    def end() -> None:
        for link in links:
            (aside / link.name).rename(link)
        shutil.rmtree(aside)

    gone = {rdma_part(device): "gone" for device in devices}
    drivers = {Part("efa", f"{d}/driver"): "gone" for d in devices if not d.startswith("mlx5")}
    return Sick(begin, end, {**gone, **drivers}, of_devices(*devices))


def blocks(node: WholeNode, scope: str) -> Sick:
    """An NVML call of 45 s on a device, while others answer."""
    sick = GPUS if scope == "all" else [GPUS[SICK]]
    where = "*" if scope == "all" else str(SICK)
    return Sick(
        begin=lambda: node.tell(f"block {where} nvmlDeviceGetMemoryInfo_v2 45"),
        end=node.tell,
        codes={Part("gpu", uuid): "hung" for uuid in sick},
        hidden=lambda name, labels: name.startswith("tailwatch_gpu_") and labels["uuid"] in sick,
        more=lambda said: values(said, "tailwatch_nvml_blocked_seconds") != [],
    )


def holds(node: WholeNode, scope: str) -> Sick:
    """An NVML call that lets nobody else through; all are stale because of that device."""
    where = "*" if scope == "all" else str(SICK)

    def more(said: Samples) -> bool:
        blocked = [dict(ls) for n, ls in said if n == "tailwatch_nvml_blocked_seconds"]
        named = {labels["device"] for labels in blocked}
        invented = ("lost", "fabric_ready", "fabric_fault", "row_remap_failed", "recovery_action")
        return (
            len(named) == 1
            and (named == {GPUS[SICK]} if scope == "one" else named <= set(GPUS))
            and not any(values(said, f"tailwatch_gpu_{name}") for name in invented)
        )

    return Sick(
        begin=lambda: node.tell(f"hold {where} nvmlDeviceGetUtilizationRates 45"),
        end=node.tell,
        codes={Part("gpu", GPUS[SICK]): "hung"},
        hidden=of_sources("tailwatch_gpu_", "tailwatch_nvlink_"),
        more=more,
    )


def some_calls_refused(node: WholeNode, scope: str) -> Sick:
    """NO_PERMISSION for some calls: the rest of the device is there and it is up."""
    sick = GPUS if scope == "all" else [GPUS[SICK]]
    where = "*" if scope == "all" else str(SICK)
    refused = ("tailwatch_gpu_utilization", "tailwatch_gpu_memory_util", "tailwatch_gpu_pcie_re")

    def more(said: Samples) -> bool:
        name, code = "tailwatch_nvml_call_errors_total", "NO_PERMISSION"
        counted = values(said, name, code=code, call="nvmlDeviceGetUtilizationRates")
        up = [value(said, "tailwatch_source_up", source="gpu", device=uuid) for uuid in sick]
        return len(counted) == len(sick) and set(up) == {1}

    orders = (f"fail {where} nvmlDeviceGetUtilizationRates 4", f"set {where} e94 4")
    return Sick(
        begin=lambda: node.tell(*orders),
        end=node.tell,
        codes={},
        hidden=lambda name, labels: name.startswith(refused) and labels["uuid"] in sick,
        more=more,
    )


def nvml_says(node: WholeNode, scope: str, number: int, code: str, *, lost: bool) -> Sick:
    """Every call on a device gives one code."""
    sick = GPUS if scope == "all" else [GPUS[SICK]]
    where = "*" if scope == "all" else str(SICK)

    def more(said: Samples) -> bool:
        named = {dict(ls)["uuid"] for (n, ls), v in said.items() if n.endswith("gpu_lost") and v}
        return named == (set(sick) if lost else set())

    return Sick(
        begin=lambda: node.tell(f"fail {where} * {number}"),
        end=node.tell,
        codes={Part(source, uuid): code for source in NVML for uuid in sick},
        hidden=of_devices(*sick),
        more=more,
    )


def floods(node: WholeNode, scope: str) -> Sick:
    """A kernel log that never ends."""
    read = "tailwatch_kernel_log_records_total"
    before = value(node.scrape(), read) or 0
    beside = reads_fail(node, "all", "HANG") if scope == "all" else None

    def begin() -> None:
        node.kernel.flood()
        if beside:
            beside.begin()

    def end() -> None:
        node.kernel.calm()
        node.sicken()

    return Sick(
        begin,
        end,
        codes=beside.codes if beside else {},
        hidden=beside.hidden if beside else of_devices(),
        more=lambda said: (
            (value(said, read) or 0) > before + 2000
            and value(said, "tailwatch_source_up", source="xid", device="kmsg") == 1
        ),
    )


def kubelet(node: WholeNode, scope: str, how: str) -> Sick:
    """Kubelet is dead, slow, or refuses."""
    beside = reads_fail(node, "all", "HANG") if scope == "all" else None

    def begin() -> None:
        if beside:
            beside.begin()
        if how == "dead":
            node.kubelet.stop()
        elif how == "slow":
            node.kubelet.released.clear()
            node.kubelet.hang()
        else:
            node.kubelet.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def end() -> None:
        node.sicken()
        node.kubelet.answer = None
        node.kubelet.released.set()
        if how == "dead":
            node.kubelet.start()

    code = {"dead": "ENOENT", "slow": "hung", "exhausted": "RESOURCE_EXHAUSTED"}[how]
    mapping = of_sources("tailwatch_gpu_pod_info", "tailwatch_pod_")
    return Sick(
        begin,
        end,
        codes={Part("pods", ""): code, **(beside.codes if beside else {})},
        hidden=lambda name, labels: (
            mapping(name, labels) or bool(beside and beside.hidden(name, labels))
        ),
        more=lambda said: how == "slow" or value(said, "tailwatch_pod_attribution_up") == 0,
    )


FAULTS: dict[str, Callable[[WholeNode, str], Sick]] = {
    "hang": lambda node, scope: reads_fail(node, scope, "HANG"),
    **{
        code: (lambda node, scope, code=code: reads_fail(node, scope, code))  # type: ignore[misc]
        for code in ("EIO", "EINVAL", "ENODEV", "ETIME", "EACCES")
    },
    "vanishes": vanishes,
    "nvml-blocks": blocks,
    "nvml-blocks-as-a-whole": holds,
    "no-permission-for-some-calls": some_calls_refused,
    "gpu-is-lost": lambda node, scope: nvml_says(node, scope, 15, "GPU_IS_LOST", lost=True),
    "kernel-log-flood": floods,
    "podresources-dead": lambda node, scope: kubelet(node, scope, "dead"),
    "podresources-slow": lambda node, scope: kubelet(node, scope, "slow"),
    "podresources-exhausted": lambda node, scope: kubelet(node, scope, "exhausted"),
}
CELLS = [(fault, scope) for fault in FAULTS for scope in ("one", "all")]


def missing(node: WholeNode, said: Samples, sick: Sick) -> set[str]:
    """Return the series that are gone although their device is well."""
    gone = node.whole - steady_series(said)
    return {f"{name}{dict(ls)}" for name, ls in gone if not sick.hidden(name, dict(ls))}


def errors(said: Samples, part: Part, code: str) -> float:
    """Return how many reads of a part failed with a code."""
    name = "tailwatch_source_errors_total"
    return value(said, name, source=part.source, device=part.device, code=code) or 0


def up(said: Samples, part: Part) -> float | None:
    """Return what is said of a part."""
    return value(said, "tailwatch_source_up", source=part.source, device=part.device)


def check(node: WholeNode, sick: Sick) -> None:
    """Bring a fault on, see what it does, take it away and see the node well again."""
    before = node.scrape()
    assert missing(node, before, sick) == set()
    sick.begin()
    try:
        began = time.monotonic()

        def named() -> bool:
            said = node.scrape()
            return all(
                up(said, part) == 0 and errors(said, part, code) > errors(before, part, code)
                for part, code in sick.codes.items()
            )

        assert eventually(named)
        assert time.monotonic() - began < SEEN_WITHIN
        assert eventually(lambda: sick.more(node.scrape()))
        # With what went before it is longer than data live: what is there was read meanwhile.
        until = time.monotonic() + 3 * INTERVAL
        while time.monotonic() < until:
            said = node.scrape()
            assert missing(node, said, sick) == set()
            time.sleep(INTERVAL / 2)
        for part in sick.codes:
            assert up(said, part) == 0
    finally:
        sick.end()
    assert eventually(lambda: node.whole <= node.series())
    assert eventually(lambda: all(up(node.scrape(), part) == 1 for part in sick.codes))
    assert eventually(lambda: node.agent.get("/-/ready")[0] == 200)


@pytest.mark.parametrize(("fault", "scope"), CELLS, ids=[f"{f}-{s}" for f, s in CELLS])
def test_fault(node: WholeNode, fault: str, scope: str) -> None:
    """The sick are named with the reason, all others stay whole, and recovery is seen."""
    check(node, FAULTS[fault](node, scope))


@pytest.mark.parametrize("scope", ["one", "all"])
@pytest.mark.parametrize("change", ["reset", "jump"])
def test_fault_of_counters(node: WholeNode, change: str, scope: str) -> None:
    """A counter is shown as it is; one that fell is a counted reset, one that jumped is none."""
    devices = some(node, scope)
    number = 0 if change == "reset" else 1 << 62
    resets = "tailwatch_source_resets_total"
    before = node.scrape()
    files = {}
    for device in devices:
        ib = device.startswith("mlx5")
        file = "counters/port_rcv_data" if ib else "hw_counters/rx_bytes"
        files[device] = node.folder / "sys/class/infiniband" / device / "ports/1" / file
    written = {device: int(file.read_text()) for device, file in files.items()}

    def shown(said: Samples, device: str) -> float | None:
        ib = device.startswith("mlx5")
        name = "infiniband_received_bytes" if ib else "efa_rx_bytes"
        return value(said, f"tailwatch_{name}_total", device=device)

    for path in files.values():
        write(path, number)
    expected = {d: number * (4 if d.startswith("mlx5") else 1) for d in devices}
    assert eventually(
        lambda: (said := node.scrape()) and all(shown(said, d) == expected[d] for d in devices)
    )
    said = node.scrape()
    for device in node.rdma:
        part = rdma_part(device)
        fell = int(change == "reset" and device in devices)
        labels = {"source": part.source, "device": device}
        assert value(said, resets, **labels) == (value(before, resets, **labels) or 0) + fell
        assert up(said, part) == 1
    assert node.whole <= steady_series(said)
    for device, path in files.items():
        write(path, written[device])
    assert eventually(lambda: all(shown(node.scrape(), d) == shown(before, d) for d in devices))


def test_fault_unknown_one(node: WholeNode) -> None:
    """UNKNOWN on one GPU is that GPU's, however often."""
    check(node, nvml_says(node, "one", 999, "UNKNOWN", lost=False))


def ends(tmp_path: Path, order: str, said: str) -> None:
    """Check that an agent ends with 1 and says why, and that all others answered until then."""
    node = WholeNode(tmp_path / "node")
    try:
        node.settle()
        node.tell(order)
        assert node.agent.process.wait(timeout=60) == 1
        assert said in node.agent.errors.read_text()
    finally:
        node.close()


def test_fault_unknown_all(tmp_path: Path) -> None:
    """UNKNOWN on all GPUs, after they were well, ends the agent: only a new process helps."""
    ends(tmp_path, "fail * * 999", "every GPU answers UNKNOWN")


@pytest.mark.parametrize("where", [SICK, "*"], ids=["one", "all"])
def test_fault_library_mismatch(tmp_path: Path, where: int | str) -> None:
    """A driver that was exchanged, told by one device or by all, ends the agent."""
    ends(tmp_path, f"fail {where} * 18", "does not fit the driver")


@pytest.mark.parametrize("scope", ["one", "all"])
def test_fault_library_missing(tmp_path: Path, scope: str) -> None:
    """Without the library its sources are down and say so, the rest is whole, and it may come."""
    node = WholeNode(tmp_path / "node", library=False)
    try:
        missing_all = scope == "all"
        codes = {Part(source, ""): "LIBRARY_NOT_FOUND" for source in NVML}
        if missing_all:
            node.kubelet.stop()
            codes[Part("pods", "")] = "ENOENT"
        assert eventually(
            lambda: (
                (said := node.scrape())
                and all(up(said, p) == 0 and errors(said, p, c) > 0 for p, c in codes.items())
            )
        )
        said = node.scrape()
        for device in node.rdma:
            assert up(said, rdma_part(device)) == 1
        assert value(said, "tailwatch_rank_last_step") == 3
        assert value(said, "tailwatch_host_oom_kills_total") == 3
        assert up(said, Part("xid", "kmsg")) == 1
        node.kernel.log(XID)
        assert eventually(lambda: value(node.scrape(), "tailwatch_xid_events_total", xid="48",
                                        device="0000:53:00.0") == 1)  # fmt: skip
        node.bring_library()
        if missing_all:
            node.kubelet.start()
        node.settle()
        assert len(values(node.scrape(), "tailwatch_gpu_utilization_ratio")) == 8
    finally:
        node.close()
