"""Metrics of the node agent about the host: CPU, memory, its own network, the fabric canary."""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, node_metric

CANARY_BOUNDS = (
    0.00002, 0.00003, 0.00005, 0.00008, 0.00012, 0.00018, 0.00027, 0.0004, 0.0006, 0.001,
    0.002, 0.005, 0.01, 0.05, 0.2, 1.0,
)  # fmt: skip

ALLOWANCES = {
    f"{what}_allowance_exceeded": what
    for what in ("bw_in", "bw_out", "pps", "conntrack", "linklocal")
}
"""Statistics of the ENA driver, and the value of the label `allowance` of each."""

_PRESSURE = ("node", "resource", "share")
_CGROUP = ("node", "cgroup")
_INTERFACE = ("node", "interface")

METRICS: list[Metric] = [
    node_metric(
        "tailwatch_host_pressure_seconds_total", "counter", "seconds",
        "Time in which some or all (full) runnable work of the host waited for a resource.",
        "pressure/{cpu,memory,io}", *_PRESSURE,
    ),
    node_metric(
        "tailwatch_host_memory_bytes", "gauge", "bytes", "Memory of the host, by kind.",
        "meminfo", "node", "kind",
    ),
    node_metric(
        "tailwatch_host_oom_kills_total", "counter", "processes",
        "Processes the kernel killed for lack of memory, in the host and in its cgroups.",
        "vmstat oom_kill", "node",
    ),
    node_metric(
        "tailwatch_cgroup_oom_kills_total", "counter", "processes",
        "Processes of a pod killed for lack of memory.", "memory.events oom_kill", *_CGROUP,
    ),
    node_metric(
        "tailwatch_cgroup_throttled_seconds_total", "counter", "seconds",
        "Time a pod was kept from running by its CPU limit.", "cpu.stat throttled_usec", *_CGROUP,
    ),
    node_metric(
        "tailwatch_cgroup_throttled_periods_total", "counter", "periods",
        "Periods in which a pod was kept from running by its CPU limit.",
        "cpu.stat nr_throttled", *_CGROUP,
    ),
    node_metric(
        "tailwatch_host_cgroups_left_out", "gauge", "cgroups",
        "Cgroups of pods that have no series because there are more than 512.", "fs/cgroup",
        "node",
    ),
    node_metric(
        "tailwatch_host_proxy_thread_cpu_seconds_total", "counter", "seconds",
        "CPU time of threads that move data for a communication library, since the agent first "
        "saw each, by thread name without its numbers.",
        "<pid>/task/<tid>/stat", "node", "thread",
    ),
    node_metric(
        "tailwatch_host_proxy_threads", "gauge", "threads",
        "Threads that move data for a communication library.", "<pid>/task/<tid>/comm",
        "node", "thread",
    ),
    node_metric(
        "tailwatch_host_fabric_manager_running", "gauge", "boolean",
        "1 when NVIDIA's fabric manager runs; absent where there are no NVSwitches, or the host's "
        "processes cannot be seen. The state of the fabric does not change when it dies later.",
        "<pid>/task/<tid>/comm", "node",
    ),
    node_metric(
        "tailwatch_host_network_received_bytes_total", "counter", "bytes",
        "Bytes received by a network interface; EFA traffic is not among them.",
        "class/net/<if>/statistics", *_INTERFACE,
    ),
    node_metric(
        "tailwatch_host_network_transmitted_bytes_total", "counter", "bytes",
        "Bytes sent by a network interface; EFA traffic is not among them.",
        "class/net/<if>/statistics", *_INTERFACE,
    ),
    node_metric(
        "tailwatch_host_network_carrier", "gauge", "boolean",
        "1 when a network interface has a carrier, else 0.", "class/net/<if>/carrier",
        *_INTERFACE,
    ),
    node_metric(
        "tailwatch_host_network_allowance_exceeded_total", "counter", "packets",
        "Packets queued or dropped because the instance used up an allowance of its network.",
        "ethtool statistics of the ENA driver", *_INTERFACE, "allowance",
    ),
    Metric(
        name="tailwatch_fabric_canary_seconds",
        kind="histogram",
        unit="seconds",
        help="Round trip of a small message to another node and back, by how much the devices of "
        "the node moved just before (busy: 100 MB a second or more; unknown: not measured yet).",
        labels=("node", "peer", "transport", "load"),
        source="node agent: the canary of the peer",
        bounds=CANARY_BOUNDS,
    ),
]  # fmt: skip
