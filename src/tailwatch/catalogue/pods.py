"""Metrics of the node agent about pods and the devices they hold."""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, node_metric

_OWNER = ("resource", "namespace", "pod", "container")

_HOLDER = ("node", "uuid", "gpu_instance", "namespace", "pod")

METRICS: list[Metric] = [
    node_metric(
        "tailwatch_gpu_pod_info", "info", "",
        "A container holds this GPU, or the part of it that `gpu_instance` or `mig_uuid` names; "
        "always 1, one series for each container that shares it. Join on (node, uuid), for a MIG "
        "device by way of tailwatch_gpu_instance_info.",
        "PodResources List", "node", "uuid", "gpu_instance", "mig_uuid", *_OWNER,
    ),
    node_metric(
        "tailwatch_efa_pod_info", "info", "",
        "A container holds this EFA or other RDMA device; always 1, one series for each container "
        "that shares it. Join on (node, device).",
        "PodResources List", "node", "device", *_OWNER,
    ),
    node_metric(
        "tailwatch_pod_devices_unmapped", "gauge", "devices",
        "Devices that pods hold and that could not be matched to a device of this node.",
        "PodResources List", "node", "resource",
    ),
    node_metric(
        "tailwatch_pod_series_dropped", "gauge", "series",
        "Owners over the most series there may be; anything above 0 means that the mapping is not "
        "whole.",
        "PodResources List", "node",
    ),
    node_metric(
        "tailwatch_pod_attribution_up", "gauge", "boolean",
        "1 when kubelet answered the last look-up; while 0, a device without an owner is not "
        "unallocated but unknown.",
        "PodResources List", "node",
    ),
    node_metric(
        "tailwatch_pod_attribution_age_seconds", "gauge", "seconds",
        "Time since kubelet last answered.", "PodResources List", "node",
    ),
    node_metric(
        "tailwatch_gpu_pod_memory_bytes", "gauge", "bytes",
        "Memory of a GPU (or GPU instance) that the processes of a pod hold; namespace and pod are "
        "empty for processes of no known pod, so that the sum is all there is. Absent where NVML "
        "knows no number.",
        "NVML processes and their cgroups", *_HOLDER,
    ),
    node_metric(
        "tailwatch_gpu_pod_processes", "gauge", "processes",
        "Compute processes of a pod on a GPU (or GPU instance); namespace and pod are empty for "
        "those of no known pod.",
        "NVML processes and their cgroups", *_HOLDER,
    ),
    node_metric(
        "tailwatch_gpu_process_mapping_up", "gauge", "boolean",
        "1 when the agent sees the host's process ids and can map processes to pods; while 0, all "
        "are of no known pod.",
        "<pid namespace of the agent>", "node",
    ),
]  # fmt: skip
