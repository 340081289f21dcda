"""What the source `gpu` says of GPUs that are well, by generation."""

from __future__ import annotations

import re

import pytest

from support.agents import parse
from support.checkout import ROOT
from support.nvml.fixtures import Node, check_with_promtool, uuid_of, value, values
from tailwatch.agents.node.collectors.gpu import GpuCollector
from tailwatch.agents.node.collectors.nvlink import NvlinkCollector
from tailwatch.agents.node.nvml import calls, gpm
from tailwatch.agents.node.nvml.mig import parse_legacy_uuid
from tailwatch.catalogue import gpu, nvlink

_CAPTURE = ROOT / "tests/agents/fixtures/h100-mig"
MIB = 1 << 20


def test_an_h100_says_what_nvml_knows_in_base_units(gpu_node: Node) -> None:
    """NVML's per cent, MHz, mW, mJ, ns and MiB/s become ratios, hertz, watts, joules and so on."""
    gpu_node.has("h100", "time 10")
    said = gpu_node.read(gpu_node.collector(), times=2)
    expected = {
        ("utilization_ratio",): 0.97,
        ("memory_size_bytes",): 81559 * MIB,
        ("memory_bytes", "kind", "reserved"): 479 * MIB,
        ("memory_bytes", "kind", "used"): 11125 * MIB,
        ("clock_hertz", "clock", "sm"): 1.98e9,
        ("power_watts",): 444.72,
        ("power_limit_watts",): 700,
        ("energy_joules_total",): (123456789 + 4e6) / 1e3,
        ("clock_event_seconds_total", "reason", "sw_power_cap"): 6,
        ("temperature_celsius", "sensor", "gpu"): 55,
        ("temperature_celsius", "sensor", "memory"): 58,
        ("temperature_margin_celsius",): 24,
        ("temperature_margin_limit_celsius", "limit", "shutdown"): -8,
        ("pcie_bytes_total", "direction", "transmit"): 5.2e9,
        ("pcie_replays_total",): 9,
        ("recovery_action",): 0,
        ("row_remap_failed",): 0,
        ("fabric_ready",): 1,
        ("sm_active_ratio",): 0.805,
        ("tensor_active_ratio",): 0.5525,
        ("dram_active_ratio",): 0.355,
        ("nvlink_bytes_per_second", "direction", "transmit"): 1000 * MIB,
        ("profiling_stuck",): 0,
        ("mig_mode",): 0,
    }
    for (name, *label), wanted in expected.items():
        labels = dict([label]) if label else {}
        found = value(said, f"tailwatch_gpu_{name}", uuid=uuid_of(2), **labels)
        assert found == pytest.approx(wanted), (name, label)
    assert value(said, "tailwatch_gpu_info", index="2", pci_bus_id="0000:75:00.0") == 1


def test_profiling_needs_two_reads_and_never_sleeps(gpu_node: Node) -> None:
    """The first read has no profiling counters; the second compares with its sample."""
    gpu_node.has()
    collector = gpu_node.collector()
    assert values(gpu_node.read(collector), "tailwatch_gpu_sm_active_ratio") == []
    assert len(values(gpu_node.read(collector), "tailwatch_gpu_sm_active_ratio")) == 8


def test_an_a100_lacks_what_came_later(gpu_node: Node) -> None:
    """An A100 has limits as temperatures, no profiling counters, margin or recovery action."""
    gpu_node.has("a100")
    said = gpu_node.read(gpu_node.collector(), times=2)
    limit = value(
        said, "tailwatch_gpu_temperature_limit_celsius", uuid=uuid_of(0), limit="slowdown"
    )
    assert limit == 92
    for absent in ("sm_active_ratio", "temperature_margin_celsius", "recovery_action"):
        assert values(said, f"tailwatch_gpu_{absent}") == []
    assert values(said, "tailwatch_gpu_fabric_ready") == []
    assert values(said, "tailwatch_nvml_call_errors_total") == []


def test_a_health_mask_that_is_not_zero_is_no_fault(gpu_node: Node) -> None:
    """A mask in which every fault is ruled out says 0 for each, one that sets a bit says which."""
    gpu_node.has("b200", f"set 3 fabric.mask {0b0101_10_10_10_01:d}")
    said = gpu_node.read(gpu_node.collector())
    assert set(values(said, "tailwatch_gpu_fabric_fault", uuid=uuid_of(0))) == {0}
    sick = {
        fault: value(said, "tailwatch_gpu_fabric_fault", uuid=uuid_of(3), fault=fault)
        for fault in ("degraded_bandwidth", "route_unhealthy", "incorrect_configuration")
    }
    assert sick == {"degraded_bandwidth": 1, "route_unhealthy": 0, "incorrect_configuration": 1}


@pytest.mark.parametrize(
    ("state", "status", "ready"),
    [
        pytest.param(3, 0, 1, id="completed"),
        pytest.param(2, 0, 0, id="in progress: fabric manager dead, or 40 s after boot"),
        pytest.param(1, 0, 0, id="not started"),
        pytest.param(3, 999, 0, id="completed with an error"),
        pytest.param(0, 0, None, id="not supported: no NVSwitch, or a rack-level one"),
    ],
)
def test_a_fabric_that_was_never_joined_shows(
    gpu_node: Node, state: int, status: int, ready: int | None
) -> None:
    """Only a GPU that completed its registration without an error is ready; none is no fault."""
    gpu_node.has("h100", f"set 1 fabric.state {state}", f"set 1 fabric.status {status}")
    said = gpu_node.read(gpu_node.collector())
    assert value(said, "tailwatch_gpu_fabric_ready", uuid=uuid_of(1)) == ready
    assert value(said, "tailwatch_gpu_fabric_state", uuid=uuid_of(1)) == (state or None)
    assert value(said, "tailwatch_gpu_fabric_ready", uuid=uuid_of(0)) == 1


def test_an_older_library_lacks_only_what_it_lacks(gpu_node: Node) -> None:
    """A symbol that the driver does not have costs its own series and no other."""
    symbols = ("nvmlDeviceGetGpuFabricInfoV", "nvmlGpmQueryDeviceSupport")
    older = (*symbols, "nvmlDeviceGetTemperatureV")
    gpu_node.has("h100", without=older)
    said = gpu_node.read(gpu_node.collector(), times=2)
    assert len(values(said, "tailwatch_gpu_utilization_ratio")) == 8
    assert len(values(said, "tailwatch_gpu_temperature_celsius", sensor="gpu")) == 8
    assert values(said, "tailwatch_gpu_fabric_ready") == []
    assert values(said, "tailwatch_gpu_sm_active_ratio") == []


def test_what_is_not_supported_is_not_asked_for_again_before_an_hour(
    gpu_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is not supported is made once, and again once an hour is over."""
    nvml = gpu_node.has("a100", "fail 0 nvmlDeviceGetUtilizationRates 3")
    collector = gpu_node.collector()
    gpu_node.read(collector, times=7)
    assert nvml.calls().count("nvmlDeviceGetUtilizationRates 0") == 1
    assert nvml.calls().count("nvmlDeviceGetUtilizationRates 1") == 7
    nvml.tell()
    monkeypatch.setattr(calls, "ASK_AGAIN_SECONDS", 0.0)
    again = gpu_node.collector()
    said = gpu_node.read(again, times=2)
    assert len(values(said, "tailwatch_gpu_utilization_ratio")) == 8


def test_reads_make_no_call_that_disturbs_the_work(gpu_node: Node) -> None:
    """No process lists, no PCIe throughput, no bad handle; a fast read is a dozen calls."""
    nvml = gpu_node.has()
    collector = gpu_node.collector()
    gpu_node.read(collector, times=2)
    before = len(nvml.calls())
    for part in list(collector.discover())[:1]:
        before = len(nvml.calls())
        part.read()
    assert len(nvml.calls()) - before <= 14
    names = " ".join(nvml.calls())
    assert not re.search("BAD|Processes|PcieThroughput", names)


def test_stuck_profiling_counters_are_no_idle_gpu(
    gpu_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters at 0 on a GPU that works and draws power are left out, and called stuck in time."""
    nvml = gpu_node.has("h100", "set 0 utilization 100", "set 0 f186 655000", "set 0 gpm.1 0")
    collector = gpu_node.collector()
    said = gpu_node.read(collector, times=2)
    assert values(said, "tailwatch_gpu_graphics_active_ratio", uuid=uuid_of(0)) == []
    assert value(said, "tailwatch_gpu_utilization_ratio", uuid=uuid_of(0)) == 1.0
    assert value(said, "tailwatch_gpu_profiling_stuck", uuid=uuid_of(0)) == 0
    assert value(said, "tailwatch_gpu_graphics_active_ratio", uuid=uuid_of(1)) == 0.93
    monkeypatch.setattr(gpm, "STUCK_SECONDS", 0.0)
    said = gpu_node.read(collector, times=2)
    assert value(said, "tailwatch_gpu_profiling_stuck", uuid=uuid_of(0)) == 1
    nvml.tell()
    said = gpu_node.read(collector, times=2)
    assert value(said, "tailwatch_gpu_profiling_stuck", uuid=uuid_of(0)) == 0
    assert value(said, "tailwatch_gpu_graphics_active_ratio", uuid=uuid_of(0)) == 0.93


def test_the_fake_in_mig_mode_is_like_the_capture() -> None:
    """The profile h100-mig has the instances and their memory that nvidia-smi showed."""
    text = (_CAPTURE / "load-query-q.txt").read_text()
    source = (ROOT / "tests/support/nvml/script.h").read_text()

    def in_fake(array: str) -> list[int]:
        line = next(line for line in source.splitlines() if f" {array}[" in line)
        return [int(n) for n in re.findall(r"\d+", line.split("=")[1])]

    gis = re.findall(r"GPU Instance ID +: (\d+)", text)[:4]
    memory = re.findall(r"Shared FB Memory Usage\n +Total +: (\d+) MiB\n.*\n +Used +: (\d+)", text)
    assert [int(gi) for gi in gis] == in_fake("MIG_GI")
    assert [int(total) for total, _ in memory] == in_fake("MIG_TOTAL")
    assert [int(used) for _, used in memory] == in_fake("MIG_USED")


@pytest.mark.parametrize("claimed", ["", "set 0 utilization 0"], ids=["n/a", "0"])
def test_a_gpu_in_mig_mode(gpu_node: Node, claimed: str) -> None:
    """Utilisation and remapped rows are unknown, not 0; power is there; memory by instance id."""
    gpu_node.has("h100-mig", claimed)
    said = gpu_node.read(gpu_node.collector(), times=2)
    for absent in ("utilization_ratio", "row_remap_failed", "remapped_rows_total"):
        assert values(said, f"tailwatch_gpu_{absent}") == []
    assert values(said, "tailwatch_gpu_graphics_active_ratio") == []
    assert value(said, "tailwatch_gpu_power_watts") == pytest.approx(444.72)
    sizes = {
        gi: value(said, "tailwatch_gpu_instance_memory_size_bytes", gpu_instance=gi)
        for gi in ("2", "3", "9", "10")
    }
    assert sizes == {"2": 40448 * MIB, "3": 20096 * MIB, "9": 9984 * MIB, "10": 9984 * MIB}
    assert value(said, "tailwatch_gpu_instance_memory_bytes", gpu_instance="2", kind="used") == (
        11091 * MIB
    )
    assert value(said, "tailwatch_gpu_instance_info", gpu_instance="9", profile="1g.10gb") == 1


def test_values_of_a_gpu_are_not_multiplied_by_its_instances(gpu_node: Node) -> None:
    """What belongs to the GPU is there once; instances have only what is their own."""
    gpu_node.has("h100-mig")
    said = gpu_node.read(gpu_node.collector(), times=2)
    once = ("power_watts", "energy_joules_total", "memory_size_bytes", "info", "recovery_action")
    for name in once:
        assert len(values(said, f"tailwatch_gpu_{name}")) == 1
    own = {name for name, _ in said if name.startswith("tailwatch_gpu_instance_")}
    shares = {"graphics", "sm", "tensor", "dram"}
    assert own == {
        "tailwatch_gpu_instance_info",
        "tailwatch_gpu_instance_memory_size_bytes",
        "tailwatch_gpu_instance_memory_bytes",
        *(f"tailwatch_gpu_instance_{share}_active_ratio" for share in shares),
    }
    assert len(values(said, "tailwatch_gpu_instance_graphics_active_ratio")) == 4


def test_instances_that_are_taken_down_go(gpu_node: Node) -> None:
    """After a repartition only the instances that are left have series, and no sample leaks."""
    nvml = gpu_node.has("h100-mig")
    collector = gpu_node.collector()
    gpu_node.read(collector, times=2)
    assert nvml.outstanding().gpm_samples == 8
    nvml.tell("set 0 mig_instances 1")
    said = gpu_node.read(collector, times=6)
    assert len(values(said, "tailwatch_gpu_instance_memory_size_bytes")) == 1
    assert nvml.outstanding().gpm_samples == 2


def test_old_mig_ids_name_the_same_instance() -> None:
    """An id of the old form gives the GPU, its instance and its compute instance."""
    gpu = "GPU-00000000-0000-0000-0000-000000000000"
    assert parse_legacy_uuid(f"MIG-{gpu}/9/0") == (gpu, 9, 0)
    assert parse_legacy_uuid("MIG-00000002-0000-0000-0000-000000000002") is None


def test_everything_taken_is_given_back(gpu_node: Node) -> None:
    """After close no GPM sample is left and NVML is shut down."""
    nvml = gpu_node.has()
    collector = gpu_node.collector()
    gpu_node.read(collector, times=2)
    assert nvml.outstanding() == (1, 0, 16)
    for part in collector.discover():
        part.close()
    collector.close()
    assert nvml.outstanding() == (0, 0, 0)


def test_every_metric_of_the_catalogue_is_emitted_as_it_stands_there(gpu_node: Node) -> None:
    """All generations together emit all GPU and NVLink metrics, and promtool finds no fault."""
    emitted = {"tailwatch_nvml_blocked_seconds"}  # only while a call hangs: test_gpu_faults.py
    for profile in ("a100", "h100", "h100-mig", "b200"):
        gpu_node.has(profile, "fail 0 nvmlDeviceGetName 4", nvlink_per_link=True)
        for kind in (GpuCollector, NvlinkCollector):
            text = gpu_node.exposition(gpu_node.collector(kind), times=2)
            check_with_promtool(text)
            emitted |= {name for name, _ in parse(text)}
    assert emitted == {metric.name for metric in (*gpu.METRICS, *nvlink.METRICS)}


def test_the_series_of_a_node_stay_within_their_share(gpu_node: Node) -> None:
    """Eight B200, the generation with most counters, are fewer than 640 series."""
    gpu_node.has("b200")
    assert len(gpu_node.read(gpu_node.collector(GpuCollector), times=2)) < 640
