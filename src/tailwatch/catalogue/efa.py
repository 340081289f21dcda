"""Metrics of the node agent about EFA devices."""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, node_metric

_PORT_FILES = (
    ("tx_bytes", "tx_bytes", "bytes", "Bytes sent on the wire, whatever the operation."),
    ("tx_pkts", "tx_packets", "packets", "Packets sent on the wire."),
    ("rx_bytes", "rx_bytes", "bytes", "Bytes received from the wire, whatever the operation."),
    ("rx_pkts", "rx_packets", "packets", "Packets received from the wire."),
    ("rx_drops", "rx_drops", "packets", "Packets received and then dropped."),
    ("send_bytes", "send_bytes", "bytes", "Payload of send operations."),
    ("send_wrs", "send_work_requests", "requests", "Send operations posted."),
    ("recv_bytes", "recv_bytes", "bytes", "Payload of receive operations."),
    ("recv_wrs", "recv_work_requests", "requests", "Receive operations completed."),
    ("rdma_read_wrs", "rdma_read_work_requests", "requests", "RDMA reads this side asked for."),
    ("rdma_read_bytes", "rdma_read_bytes", "bytes", "Payload this side read from others."),
    ("rdma_read_wr_err", "rdma_read_errors", "requests", "RDMA reads that failed."),
    (
        "rdma_read_resp_bytes", "rdma_read_response_bytes", "bytes",
        "Payload that others read from this side.",
    ),
    ("rdma_write_wrs", "rdma_write_work_requests", "requests", "RDMA writes this side posted."),
    ("rdma_write_bytes", "rdma_write_bytes", "bytes", "Payload this side wrote to others."),
    ("rdma_write_wr_err", "rdma_write_errors", "requests", "RDMA writes that failed."),
    (
        "rdma_write_recv_bytes", "rdma_write_received_bytes", "bytes",
        "Payload that others wrote to this side.",
    ),
    ("retrans_bytes", "retransmitted_bytes", "bytes", "Bytes sent again by the device (SRD)."),
    ("retrans_pkts", "retransmitted_packets", "packets", "Packets sent again by the device (SRD)."),
    (
        "retrans_timeout_events", "retransmit_timeout_events", "events",
        "Times traffic timed out and its network path was changed.",
    ),
    (
        "unresponsive_remote_events", "unresponsive_remote_events", "events",
        "Times a remote did not answer.",
    ),
    (
        "impaired_remote_conn_events", "impaired_remote_connection_events", "events",
        "Times a connection entered an impaired state with a reduced throughput limit.",
    ),
)  # fmt: skip

_DEVICE_FILES = (
    (
        "submitted_cmds", "admin_commands_submitted", "commands",
        "Admin commands sent to the device; reading the port counters sends some.",
    ),
    ("completed_cmds", "admin_commands_completed", "commands", "Admin commands that completed."),
    ("cmds_err", "admin_commands_failed", "commands", "Admin commands that failed."),
    (
        "no_completion_cmds", "admin_commands_without_completion", "commands",
        "Admin commands the device never answered; from the first one on it is unusable until it "
        "is reset.",
    ),
    ("keep_alive_rcvd", "keep_alives_received", "events", "Signs of life from the device."),
)  # fmt: skip

RESOURCE_ERRORS = {
    f"{operation}_err": operation
    for operation in (
        "alloc_pd", "create_qp", "create_cq", "reg_mr", "alloc_ucontext", "create_ah", "mmap",
        "alloc_mr", "get_dma_mr",
    )
}  # fmt: skip
"""Files that count failed operations, and the value of the label `operation` of each."""

PORT_COUNTERS = {file: f"tailwatch_efa_{name}_total" for file, name, _, _ in _PORT_FILES}
DEVICE_COUNTERS = {file: f"tailwatch_efa_{name}_total" for file, name, _, _ in _DEVICE_FILES}
"""Metric by the name of the file below hw_counters."""

_DEVICE = ("node", "device")

METRICS: list[Metric] = [
    *(
        node_metric(
            f"tailwatch_efa_{name}_total", "counter", unit, text,
            f"ports/<port>/hw_counters/{file}", *_DEVICE, "port",
        )
        for file, name, unit, text in _PORT_FILES
    ),
    *(
        node_metric(
            f"tailwatch_efa_{name}_total", "counter", unit, text, f"hw_counters/{file}", *_DEVICE
        )
        for file, name, unit, text in _DEVICE_FILES
    ),
    node_metric(
        "tailwatch_efa_resource_errors_total", "counter", "operations",
        "Operations on the device that failed, by kind.", "hw_counters/*_err", *_DEVICE,
        "operation",
    ),
    node_metric(
        "tailwatch_efa_device_info", "info", "",
        "Where an EFA device sits: PCI address, NUMA node, nearest GPUs (PCI addresses), its "
        "network interface if it has one, and the version of the driver; always 1.",
        "sysfs", *_DEVICE, "pci_bus_id", "numa_node", "gpu_pci_bus_ids", "interface", "mac",
        "driver_version",
    ),
    node_metric(
        "tailwatch_efa_unreadable_files", "gauge", "files",
        "Counter files that gave an error or no number while others of the device read; they are "
        "left alone for an hour. `port` is empty for the counters of the device.",
        "hw_counters", *_DEVICE, "port",
    ),
    node_metric(
        "tailwatch_efa_devices", "gauge", "devices", "EFA devices found.",
        "class/infiniband by driver", "node",
    ),
    node_metric(
        "tailwatch_efa_expected_devices", "gauge", "devices",
        "EFA devices a whole node of this instance type has.", "instance type", "node",
    ),
    node_metric(
        "tailwatch_efa_line_rate_bytes_per_second", "gauge", "bytes per second",
        "Line rate of a device, from the instance type; what the device says of its rate is fixed "
        "in the driver.",
        "instance type", *_DEVICE,
    ),
]  # fmt: skip
