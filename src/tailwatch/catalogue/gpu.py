"""Metrics of the node agent about GPUs."""

from __future__ import annotations

from tailwatch.catalogue.metric import Kind, Metric, node_metric

_GPU = ("node", "uuid")
_INSTANCE = (*_GPU, "gpu_instance")


def _gpu(name: str, kind: Kind, unit: str, text: str, source: str, *labels: str) -> Metric:
    return node_metric(f"tailwatch_gpu_{name}", kind, unit, text, f"NVML {source}", *_GPU, *labels)


def _instance(name: str, kind: Kind, unit: str, text: str, source: str, *labels: str) -> Metric:
    name = f"tailwatch_gpu_instance_{name}"
    return node_metric(name, kind, unit, text, f"NVML {source}", *_INSTANCE, *labels)


METRICS: list[Metric] = [
    _gpu(
        "info", "info", "", "Identity of a GPU; always 1.", "device queries",
        "index", "name", "serial", "pci_bus_id", "driver_version",
    ),
    node_metric(
        "tailwatch_gpu_devices", "gauge", "GPUs",
        "GPUs that should be there (expected: by instance type, else the most that were ever "
        "listed or are on the PCI bus), that NVML lists (listed), and that were read (readable).",
        "NVML nvmlDeviceGetCount, sysfs", "node", "state",
    ),
    node_metric(
        "tailwatch_gpu_lost", "gauge", "boolean",
        "1 when a GPU answered that it is lost or needs a reset, 0 when it was read; absent when "
        "neither is known. uuid and pci_bus_id are empty when it never answered.",
        "NVML GPU_IS_LOST, RESET_REQUIRED", *_GPU, "index", "pci_bus_id",
    ),
    node_metric(
        "tailwatch_nvml_blocked_seconds", "gauge", "seconds",
        "How long the oldest call has been inside NVML, from 1 s on. Where the driver lets nobody "
        "else through, all GPU sources are stale because of this device; empty: the library.",
        "calls of the agent under way", "node", "device", "call",
    ),
    node_metric(
        "tailwatch_nvml_call_errors_total", "counter", "calls",
        "Calls (or fields) that a GPU refused while others were answered; what it does not "
        "support is no error.",
        "NVML return codes", *_GPU, "source", "call", "code",
    ),
    _gpu(
        "utilization_ratio", "gauge", "ratio",
        "Share of time in which a kernel ran; says nothing about how much of the GPU it used. "
        "Absent in MIG mode.",
        "nvmlDeviceGetUtilizationRates",
    ),
    _gpu(
        "memory_utilization_ratio", "gauge", "ratio",
        "Share of time in which device memory was read or written; absent in MIG mode.",
        "nvmlDeviceGetUtilizationRates",
    ),
    _gpu(
        "graphics_active_ratio", "gauge", "ratio",
        "Share of time in which a compute or graphics engine was active, over the time between "
        "two reads. Hopper and later, like all profiling counters; absent in MIG mode, and when "
        "it contradicts utilization and power.",
        "GPM 1",
    ),
    _gpu("sm_active_ratio", "gauge", "ratio", "Share of SMs that were busy.", "GPM 2"),
    _gpu("sm_occupancy_ratio", "gauge", "ratio", "Share of warps that were active.", "GPM 3"),
    _gpu(
        "tensor_active_ratio", "gauge", "ratio", "Share of time in tensor operations.", "GPM 5",
    ),
    _gpu(
        "dram_active_ratio", "gauge", "ratio", "Share of the memory bandwidth in use.", "GPM 10",
    ),
    _gpu(
        "nvlink_bytes_per_second", "gauge", "bytes per second",
        "NVLink traffic over the time between two reads; the counters of the source nvlink are "
        "exact over any time.",
        "GPM 60, 61", "direction",
    ),
    _gpu(
        "profiling_stuck", "gauge", "boolean",
        "1 when the profiling counters have said idle for 5 minutes while utilization is over "
        "90 % and power over 60 % of its limit: the counters are broken, the GPU is busy.",
        "GPM against utilization and power",
    ),
    _gpu(
        "memory_size_bytes", "gauge", "bytes", "Size of the memory.",
        "nvmlDeviceGetMemoryInfo_v2",
    ),
    _gpu(
        "memory_bytes", "gauge", "bytes",
        "Memory that is used, free or reserved by the driver; used does not hold what is "
        "reserved.",
        "nvmlDeviceGetMemoryInfo_v2", "kind",
    ),
    _gpu("clock_hertz", "gauge", "hertz", "Current clock.", "nvmlDeviceGetClockInfo", "clock"),
    _gpu(
        "clock_max_hertz", "gauge", "hertz", "Highest clock.", "nvmlDeviceGetMaxClockInfo",
        "clock",
    ),
    _gpu(
        "clock_event_seconds_total", "counter", "seconds",
        "Time for which a reason kept the clocks down.",
        "fields 74 to 79, 269 to 271 (nanoseconds)", "reason",
    ),
    _gpu(
        "power_watts", "gauge", "watts",
        "Power drawn now, where that is not known over the last second.", "fields 186, 185",
    ),
    _gpu("power_limit_watts", "gauge", "watts", "Power limit in force.", "field 190"),
    _gpu(
        "energy_joules_total", "counter", "joules", "Energy used since the driver was loaded.",
        "field 83",
    ),
    _gpu(
        "temperature_celsius", "gauge", "celsius", "Temperature of the GPU or its memory.",
        "nvmlDeviceGetTemperatureV, field 82", "sensor",
    ),
    _gpu(
        "temperature_limit_celsius", "gauge", "celsius",
        "Temperature at which something happens; before Hopper.",
        "nvmlDeviceGetTemperatureThreshold", "limit",
    ),
    _gpu(
        "temperature_margin_celsius", "gauge", "celsius",
        "How far the GPU is below the temperature at which it slows down (T.Limit); Hopper and "
        "later.",
        "nvmlDeviceGetMarginTemperature",
    ),
    _gpu(
        "temperature_margin_limit_celsius", "gauge", "celsius",
        "The margin at which something happens; negative is hotter.", "fields 193 to 196", "limit",
    ),
    _gpu(
        "pcie_bytes_total", "counter", "bytes",
        "Bytes over PCIe; the driver's counter can wrap, which looks like a reset.",
        "fields 197, 198", "direction",
    ),
    _gpu("pcie_replays_total", "counter", "replays", "PCIe packets sent again.", "field 94"),
    _gpu(
        "pcie_errors_total", "counter", "errors", "PCIe errors by kind.",
        "fields 173, 179, 180", "kind",
    ),
    _gpu("ecc_enabled", "gauge", "boolean", "1 when ECC is on.", "field 1"),
    _gpu(
        "ecc_errors_total", "counter", "errors",
        "ECC errors since the driver was loaded (volatile) or over the life of the GPU "
        "(aggregate).",
        "fields 3 to 6", "kind", "scope",
    ),
    _gpu(
        "remapped_rows_total", "counter", "rows",
        "Rows of memory that were replaced; absent in MIG mode, where it is not known.",
        "fields 142, 143", "cause",
    ),
    _gpu(
        "row_remap_pending", "gauge", "boolean", "1 when a remapping waits for a reset.",
        "field 144",
    ),
    _gpu(
        "row_remap_failed", "gauge", "boolean", "1 when a remapping failed: replace the GPU.",
        "field 145",
    ),
    _gpu(
        "recovery_action", "gauge", "action",
        "What the driver asks for: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain peers, 4 drain "
        "and reset, 5 recover the IMEX domain, 6 bus reset, 7 system reboot.",
        "field 230",
    ),
    _gpu(
        "fabric_state", "gauge", "state",
        "Registration with the NVLink fabric: 1 not started, 2 in progress, 3 completed; absent "
        "without a fabric.",
        "nvmlDeviceGetGpuFabricInfoV",
    ),
    _gpu(
        "fabric_ready", "gauge", "boolean",
        "1 when the registration completed without an error; 0 for minutes means that the fabric "
        "manager is not there. Stays 1 when it dies later.",
        "nvmlDeviceGetGpuFabricInfoV",
    ),
    _gpu(
        "fabric_fault", "gauge", "boolean",
        "1 for each fault that the fabric reports, 0 for each it rules out; absent for what it "
        "does not know.",
        "nvmlDeviceGetGpuFabricInfoV, health mask", "fault",
    ),
    _gpu("mig_mode", "gauge", "boolean", "1 in MIG mode.", "nvmlDeviceGetMigMode"),
    _instance(
        "info", "info", "", "Identity of a MIG instance; always 1.", "MIG queries",
        "compute_instance", "mig_uuid", "profile",
    ),
    _instance(
        "memory_size_bytes", "gauge", "bytes", "Memory of a GPU instance.",
        "nvmlDeviceGetMemoryInfo_v2",
    ),
    _instance(
        "memory_bytes", "gauge", "bytes",
        "Memory of a GPU instance that is used, free or reserved, once for all its compute "
        "instances.",
        "nvmlDeviceGetMemoryInfo_v2", "kind",
    ),
    _instance(
        "graphics_active_ratio", "gauge", "ratio",
        "Share of time in which the GPU instance was active.", "GPM 1",
    ),
    _instance(
        "sm_active_ratio", "gauge", "ratio", "Share of the instance's SMs that were busy.",
        "GPM 2",
    ),
    _instance(
        "tensor_active_ratio", "gauge", "ratio", "Share of time in tensor operations.", "GPM 5",
    ),
    _instance(
        "dram_active_ratio", "gauge", "ratio", "Share of the instance's memory bandwidth in use.",
        "GPM 10",
    ),
]  # fmt: skip
