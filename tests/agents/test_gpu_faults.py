"""What the source `gpu` says of GPUs that are sick, run as the agent runs it."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from support.agents import Agent, Samples
from support.nvml.fixtures import Node, says, uuid_of, value, values
from support.procs import eventually
from tailwatch.agents.node.base import NeedsNewProcess, SourceError
from tailwatch.agents.node.collectors.gpu import GpuCollector
from tailwatch.agents.node.collectors.nvlink import NvlinkCollector
from tailwatch.agents.node.watch import Watch

UTILIZATION = "tailwatch_gpu_utilization_ratio"
LOST, UNKNOWN, TIMEOUT, NO_PERMISSION, MISMATCH = 15, 999, 10, 4, 18
SICK = 5


def _with_values(watch: Watch) -> int:
    return len(values(says(watch), UTILIZATION))


def _up(said: Samples, index: int, source: str = "gpu") -> float | None:
    return value(said, "tailwatch_source_up", source=source, device=uuid_of(index))


def _errors(said: Samples, device: str, code: str, source: str = "gpu") -> float | None:
    name = "tailwatch_source_errors_total"
    return value(said, name, source=source, device=device, code=code)


def _devices(said: Samples) -> dict[str, float | None]:
    states = ("expected", "listed", "readable")
    return {s: value(said, "tailwatch_gpu_devices", state=s) for s in states}


@pytest.mark.parametrize("code", [LOST, 16], ids=["lost", "reset required"])
def test_a_gpu_that_is_lost_costs_the_others_nothing(gpu_node: Node, code: int) -> None:
    """One of eight is lost: seven keep their series, it has none but the one that says so."""
    nvml = gpu_node.has()
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: _with_values(watch) == 8)
    nvml.tell(f"fail {SICK} * {code}")
    assert eventually(lambda: _with_values(watch) == 7)
    said = says(watch)
    address = "0000:a8:00.0"
    assert value(said, "tailwatch_gpu_lost", uuid=uuid_of(SICK), pci_bus_id=address) == 1
    assert len(values(said, "tailwatch_gpu_lost")) == 8
    assert values(said, "tailwatch_gpu_temperature_celsius", uuid=uuid_of(SICK)) == []
    assert _devices(said) == {"expected": 8, "listed": 8, "readable": 7}
    assert _up(said, SICK) == 0
    assert watch.fatal == ""
    nvml.tell()
    assert eventually(lambda: _with_values(watch) == 8)
    assert value(says(watch), "tailwatch_gpu_lost", uuid=uuid_of(SICK)) == 0


def test_a_gpu_that_is_lost_is_not_asked_without_end(gpu_node: Node) -> None:
    """A lost GPU is read ever less often, and with a single call each time."""
    nvml = gpu_node.has()
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: _with_values(watch) == 8)
    nvml.tell(f"fail {SICK} * {LOST}")
    assert eventually(lambda: _with_values(watch) == 7)
    before = Counter(nvml.calls())
    call = "nvmlDeviceGetMemoryInfo_v2 0"
    assert eventually(lambda: Counter(nvml.calls())[call] >= before[call] + 15)
    asked = Counter(nvml.calls()) - before
    healthy, lost = (
        sum(n for name, n in asked.items() if name.endswith(f" {index}")) for index in (0, SICK)
    )
    assert lost * 3 < healthy


@pytest.mark.parametrize(("code", "lost"), [(LOST, 1), (UNKNOWN, None)])
def test_a_gpu_that_never_gave_a_handle(gpu_node: Node, code: int, lost: int | None) -> None:
    """A GPU without a handle is a source that is down; a null handle is never used."""
    nvml = gpu_node.has("h100", f"fail {SICK} nvmlDeviceGetHandleByIndex_v2 {code}")
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: _with_values(watch) == 7)
    said = says(watch)
    assert value(said, "tailwatch_gpu_lost", index=str(SICK), uuid="") == lost
    assert value(said, "tailwatch_source_up", source="gpu", device=f"gpu-{SICK}") == 0
    assert _devices(said) == {"expected": 8, "listed": 8, "readable": 7}
    nvml.tell()
    assert eventually(lambda: _with_values(watch) == 8)
    assert value(says(watch), "tailwatch_source_up", source="gpu", device=f"gpu-{SICK}") == 1
    assert not [call for call in nvml.calls() if call.startswith("BAD")]


def test_a_gpu_that_a_new_driver_does_not_list(gpu_node: Node) -> None:
    """A driver that lists seven does not make seven the right number."""
    gpu_node.has("h100", "count 7", instance_type="p5.48xlarge")
    said = gpu_node.read(gpu_node.collector())
    assert _devices(said) == {"expected": 8, "listed": 7, "readable": 7}


def test_a_gpu_that_is_listed_no_more(gpu_node: Node) -> None:
    """Without an instance type the most that were ever listed is the number that is expected."""
    nvml = gpu_node.has()
    collector = gpu_node.collector()
    gpu_node.read(collector)
    nvml.tell("count 7")
    assert _devices(gpu_node.read(collector)) == {"expected": 8, "listed": 7, "readable": 7}


def test_a_call_that_hangs_on_one_gpu(gpu_node: Node) -> None:
    """One call of 45 s costs the other seven nothing, names the GPU, and is not repeated."""
    nvml = gpu_node.has()
    watch = gpu_node.watch(GpuCollector, NvlinkCollector)
    assert eventually(lambda: _with_values(watch) == 8)
    nvml.tell(f"block {SICK} nvmlDeviceGetMemoryInfo_v2 45")
    assert eventually(lambda: _with_values(watch) == 7)
    blocked = "tailwatch_nvml_blocked_seconds"
    assert eventually(lambda: values(says(watch), blocked, device=uuid_of(SICK)) != [])
    assert eventually(lambda: _errors(says(watch), uuid_of(SICK), "hung") == 1)
    assert [_up(says(watch), index) for index in range(8)] == [1, 1, 1, 1, 1, 0, 1, 1]
    assert len(values(says(watch), "tailwatch_nvlink_bytes_total", direction="receive")) == 8
    assert nvml.calls().count(f"nvmlDeviceGetMemoryInfo_v2 {SICK}") <= 40
    before = nvml.calls().count(f"nvmlDeviceGetMemoryInfo_v2 {SICK}")
    fresh = nvml.calls().count("nvmlDeviceGetMemoryInfo_v2 0")
    assert eventually(lambda: nvml.calls().count("nvmlDeviceGetMemoryInfo_v2 0") > fresh + 3)
    assert nvml.calls().count(f"nvmlDeviceGetMemoryInfo_v2 {SICK}") == before
    nvml.tell()
    assert eventually(lambda: _with_values(watch) == 8)
    assert eventually(lambda: _up(says(watch), SICK) == 1)
    assert values(says(watch), "tailwatch_nvml_blocked_seconds") == []


def test_a_gpu_that_holds_the_whole_driver(gpu_node: Node) -> None:
    """Where one GPU lets nobody through, all are stale, that one is named, and none is well."""
    nvml = gpu_node.has()
    watch = gpu_node.watch(GpuCollector, NvlinkCollector)
    assert eventually(lambda: _with_values(watch) == 8)
    nvml.tell(f"hold {SICK} nvmlDeviceGetUtilizationRates 45")
    assert eventually(lambda: _with_values(watch) == 0)
    assert eventually(lambda: all(_up(says(watch), index) == 0 for index in range(8)))
    said = says(watch)
    blocked = {
        dict(labels)["device"]: dict(labels)["call"]
        for name, labels in said
        if name == "tailwatch_nvml_blocked_seconds"
    }
    assert blocked == {uuid_of(SICK): "nvmlDeviceGetUtilizationRates"}
    assert eventually(lambda: values(says(watch), "tailwatch_gpu_lost") == [])
    said = says(watch)
    assert not [name for name, labels in said if "fabric_ready" in name or "row_remap" in name]
    assert _devices(said)["readable"] == 0
    assert watch.fatal == ""
    nvml.tell()
    assert eventually(lambda: _with_values(watch) == 8)
    assert eventually(lambda: all(_up(says(watch), index) == 1 for index in range(8)))


@pytest.mark.parametrize("code", [NO_PERMISSION, TIMEOUT, UNKNOWN])
def test_calls_that_are_refused_cost_only_their_series(gpu_node: Node, code: int) -> None:
    """A call that a GPU refuses is counted and its series absent; the rest of the GPU stays."""
    call = "nvmlDeviceGetUtilizationRates"
    gpu_node.has("h100", f"fail {SICK} {call} {code}", f"set {SICK} e94 {code}")
    said = gpu_node.read(gpu_node.collector(), times=2)
    assert values(said, UTILIZATION, uuid=uuid_of(SICK)) == []
    assert len(values(said, UTILIZATION)) == 7
    assert values(said, "tailwatch_gpu_pcie_replays_total", uuid=uuid_of(SICK)) == []
    assert value(said, "tailwatch_gpu_power_watts", uuid=uuid_of(SICK)) == pytest.approx(444.72)
    name = {NO_PERMISSION: "NO_PERMISSION", TIMEOUT: "TIMEOUT", UNKNOWN: "UNKNOWN"}[code]
    for refused in (call, "field_94"):
        count = value(said, "tailwatch_nvml_call_errors_total", call=refused, code=name)
        assert count == 2
    assert len(values(said, "tailwatch_nvml_call_errors_total")) == 2


def test_a_gpu_that_refuses_everything(gpu_node: Node) -> None:
    """A GPU that answers nothing is down with the reason; it is not called lost."""
    gpu_node.has("h100", f"fail {SICK} * {NO_PERMISSION}")
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: _with_values(watch) == 7)
    said = says(watch)
    assert _errors(said, f"gpu-{SICK}", "NO_PERMISSION") is not None
    assert value(said, "tailwatch_gpu_lost", index=str(SICK)) is None


def test_devices_that_were_taken_from_the_container(gpu_node: Node) -> None:
    """Every GPU answers UNKNOWN after they had been well: only a new process gets them back."""
    nvml = gpu_node.has()
    watch = gpu_node.watch(GpuCollector, NvlinkCollector)
    assert eventually(lambda: _with_values(watch) == 8)
    nvml.tell(f"fail * * {UNKNOWN}")
    assert eventually(lambda: watch.fatal != "")
    assert "UNKNOWN" in watch.fatal
    assert values(says(watch), "tailwatch_gpu_lost") == []


def test_devices_that_were_never_there(gpu_node: Node) -> None:
    """UNKNOWN from the first call on is a source that is down; another process would not help."""
    gpu_node.has("h100", f"fail * * {UNKNOWN}")
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: (_errors(says(watch), "gpu-0", "UNKNOWN") or 0) >= 3)
    assert watch.fatal == ""


def test_one_gpu_that_is_unknown_is_no_reason_to_end(gpu_node: Node) -> None:
    """UNKNOWN on one GPU, again and again, is that GPU's."""
    gpu_node.has("h100", f"fail {SICK} * {UNKNOWN}")
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: (_errors(says(watch), f"gpu-{SICK}", "UNKNOWN") or 0) >= 3)
    assert watch.fatal == ""
    assert _with_values(watch) == 7


def test_a_library_that_does_not_fit_the_driver_at_start(gpu_node: Node) -> None:
    """A mismatch at initialisation needs a new process."""
    gpu_node.has("h100", f"init {MISMATCH}")
    with pytest.raises(NeedsNewProcess, match="does not fit the driver"):
        gpu_node.collector().discover()


def test_a_driver_that_is_exchanged(gpu_node: Node) -> None:
    """A mismatch in the middle of life ends the agent."""
    nvml = gpu_node.has()
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: _with_values(watch) == 8)
    nvml.tell(f"fail * * {MISMATCH}")
    assert eventually(lambda: "does not fit the driver" in watch.fatal)


def test_an_agent_without_the_library(gpu_node: Node) -> None:
    """A library that is not there is a source that is down with the reason, not a crash."""
    gpu_node.has()
    nowhere = "/nowhere/libnvidia-ml.so.1"
    gpu_node.config = msgspec.structs.replace(gpu_node.config, nvml_library=nowhere)
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: _errors(says(watch), "", "LIBRARY_NOT_FOUND") == 1)
    up = ("tailwatch_source_up",)
    assert eventually(lambda: value(says(watch), *up, source="gpu", device="") == 0)
    assert watch.fatal == ""


def test_an_agent_without_the_package(gpu_node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py the source says so, and nothing else is touched."""
    gpu_node.has()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(SourceError, match="nvidia-ml-py") as caught:
        gpu_node.collector().discover()
    assert caught.value.code == "PACKAGE_MISSING"


def test_a_library_that_comes_later(gpu_node: Node) -> None:
    """A driver that is still loading is waited for."""
    nvml = gpu_node.has("h100", "init 9")
    collector = gpu_node.collector()
    with pytest.raises(SourceError) as caught:
        collector.discover()
    assert caught.value.code == "DRIVER_NOT_LOADED"
    nvml.tell()
    assert len(values(gpu_node.read(collector), UTILIZATION)) == 8


def test_nvml_that_somebody_else_shut_down(gpu_node: Node) -> None:
    """When NVML says that it is not initialised, it is initialised again."""
    nvml = gpu_node.has()
    collector = gpu_node.collector()
    gpu_node.read(collector)
    ctypes.CDLL(nvml.path).nvmlShutdown()
    with pytest.raises(SourceError, match="UNINITIALIZED"):
        collector.discover()
    assert len(values(gpu_node.read(collector), UTILIZATION)) == 8


def test_counters_that_fall_are_one_reset(gpu_node: Node) -> None:
    """A driver that was loaded anew is exported as it counts, and counted as one reset."""
    nvml = gpu_node.has("h100", "time 100")
    collector = gpu_node.collector()
    gpu_node.read(collector)
    nvml.tell("time 1")
    said = gpu_node.read(collector)
    energy = value(said, "tailwatch_gpu_energy_joules_total", uuid=uuid_of(0))
    assert energy == pytest.approx((123456789 + 4e5) / 1e3)
    assert [part.resets.count for part in collector.discover()] == [1] * 8  # type: ignore[attr-defined]


def test_a_pause_releases_everything(gpu_node: Node) -> None:
    """While the agent is paused it holds nothing of NVML; afterwards it goes on."""
    nvml = gpu_node.has()
    watch = gpu_node.watch(GpuCollector, NvlinkCollector)
    assert eventually(lambda: _with_values(watch) == 8)
    watch.pause()
    assert nvml.outstanding() == (0, 0, 0)
    assert values(says(watch), UTILIZATION) == []
    watch.resume()
    assert eventually(lambda: _with_values(watch) == 8)


def test_a_call_that_hangs_does_not_hold_up_the_end(gpu_node: Node) -> None:
    """With a call that hangs the agent lets go within its time, and leaves the call behind."""
    nvml = gpu_node.has()
    watch = gpu_node.watch(GpuCollector)
    assert eventually(lambda: _with_values(watch) == 8)
    nvml.tell(f"block {SICK} * 45")
    assert eventually(lambda: _with_values(watch) == 7)
    started = time.monotonic()
    watch.close()
    assert time.monotonic() - started < 10


@contextlib.contextmanager
def _agent(gpu_node: Node) -> Iterator[Agent]:
    flags: list[str | Path] = [
        *("--node", "n", "--listen", "127.0.0.1:0", "--nvml.library", gpu_node.nvml.path),
        *("--path.sysfs", str(gpu_node.directory), "--collector.disable-defaults"),
        "--collector.gpu",
    ]
    agent = Agent("node", flags, gpu_node.directory / "ready")
    try:
        yield agent
    finally:
        agent.kill()


def test_the_agent_ends_while_nvml_hangs(gpu_node: Node) -> None:
    """SIGTERM ends the agent with 0 although a call of its never comes back."""
    nvml = gpu_node.has("h100", f"block {SICK} nvmlDeviceGetClockInfo 600")
    call = f"nvmlDeviceGetClockInfo {SICK}"
    with _agent(gpu_node) as agent:
        assert eventually(lambda: call in nvml.calls())
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(timeout=20) == 0


def test_the_agent_ends_with_1_where_only_a_new_process_helps(gpu_node: Node) -> None:
    """An exchanged driver ends the agent with 1, so that it is started anew."""
    nvml = gpu_node.has("h100")
    with _agent(gpu_node) as agent:
        assert eventually(lambda: len(nvml.calls()) > 8)
        nvml.tell(f"fail * * {MISMATCH}")
        assert agent.process.wait(timeout=60) == 1
    assert "does not fit the driver" in agent.errors.read_text()


def test_the_whole_agent_once_on_a_node_with_a_lost_gpu(gpu_node: Node) -> None:
    """`--once` prints seven GPUs and the one that is lost, as a process of its own."""
    nvml = gpu_node.has("h100", f"fail {SICK} * {LOST}")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailwatch.agents.node.main", "--node", "n", "--once"),
            *("--nvml.library", nvml.path, "--path.sysfs", str(gpu_node.directory)),
            *("--collector.disable-defaults", "--collector.gpu", "--collector.nvlink"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\ntailwatch_gpu_power_watts{") == 7
    assert f'tailwatch_gpu_lost{{node="n",uuid="",index="{SICK}",pci_bus_id=""}} 1' in done.stdout
