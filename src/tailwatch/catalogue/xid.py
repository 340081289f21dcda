"""Metrics of the node agent about Xid and other events of the kernel log."""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, node_metric

METRICS: list[Metric] = [
    node_metric(
        "tailwatch_xid_events_total", "counter", "events",
        "Xid events of a GPU, each counted once whether the kernel log, NVML or both told of it; "
        "`device` is the PCI address.",
        "/dev/kmsg and NVML events", "node", "device", "xid", "severity",
    ),
    node_metric(
        "tailwatch_sxid_events_total", "counter", "events",
        "SXid events of an NVSwitch; `device` is the PCI address.",
        "/dev/kmsg", "node", "device", "sxid", "severity",
    ),
    node_metric(
        "tailwatch_kernel_events_total", "counter", "events",
        "Lines of the kernel log about EFA, mlx5, the NVIDIA driver and NCCL; `device` is an RDMA "
        "device or PCI address, empty where the line names none.",
        "/dev/kmsg", "node", "kind", "device", "code", "severity",
    ),
    node_metric(
        "tailwatch_kernel_incidents_total", "counter", "incidents",
        "Bursts of events of one code on one device (no such event for 60 s ends one), from Xid, "
        "SXid and the other lines; born at 0 for every code the catalogue knows.",
        "/dev/kmsg and NVML events", "node", "kind", "code", "severity",
    ),
    node_metric(
        "tailwatch_kernel_last_event_timestamp_seconds", "gauge", "seconds",
        "Unix time of the newest event of a code on a device, also one from before the agent was "
        "started; `action` is what to do first.",
        "/dev/kmsg and NVML events", "node", "kind", "device", "code", "severity", "action",
    ),
    node_metric(
        "tailwatch_kernel_log_records_total", "counter", "records",
        "Records of the kernel log that were read.", "/dev/kmsg", "node",
    ),
    node_metric(
        "tailwatch_kernel_log_records_lost_total", "counter", "records",
        "Records of the kernel log that were overwritten before they could be read.",
        "EPIPE and sequence numbers of /dev/kmsg", "node",
    ),
]  # fmt: skip
