"""Metrics of the node agent about InfiniBand and RoCE devices."""

from __future__ import annotations

from typing import NamedTuple

from tailwatch.catalogue.metric import Metric, node_metric


class PortCounter(NamedTuple):
    """One file below ports/<port>/counters.

    Attributes:
        name: the metric.
        factor: what one unit of the file is in units of the metric.
        top: value at which the counter sticks until it is cleared; None for one of 64 bits.
    """

    name: str
    factor: int = 1
    top: int | None = None


_4BIT, _8BIT, _16BIT, _32BIT = 15, 255, 65535, 4294967295
_PORT = ("node", "device", "port")

# file: (name, unit, width, factor, help)
_FILES: dict[str, tuple[str, str, int | None, int, str]] = {
    "port_rcv_data": (
        "received_bytes", "bytes", _32BIT, 4, "Bytes received; the device counts words of 4.",
    ),
    "port_xmit_data": (
        "transmitted_bytes", "bytes", _32BIT, 4, "Bytes sent; the device counts words of 4.",
    ),
    "port_rcv_packets": ("received_packets", "packets", _32BIT, 1, "Packets received."),
    "port_xmit_packets": ("transmitted_packets", "packets", _32BIT, 1, "Packets sent."),
    "unicast_rcv_packets": (
        "unicast_received_packets", "packets", None, 1, "Unicast packets received.",
    ),
    "unicast_xmit_packets": (
        "unicast_transmitted_packets", "packets", None, 1, "Unicast packets sent.",
    ),
    "multicast_rcv_packets": (
        "multicast_received_packets", "packets", None, 1, "Multicast packets received.",
    ),
    "multicast_xmit_packets": (
        "multicast_transmitted_packets", "packets", None, 1, "Multicast packets sent.",
    ),
    "port_xmit_wait": (
        "transmit_wait_ticks", "ticks", _32BIT, 1,
        "Ticks in which there was data to send and no credit to send it.",
    ),
    "port_rcv_errors": ("receive_errors", "packets", _16BIT, 1, "Packets received with an error."),
    "port_xmit_discards": (
        "transmit_discards", "packets", _16BIT, 1, "Packets dropped because the port was down or "
        "congested.",
    ),
    "port_rcv_constraint_errors": (
        "receive_constraint_errors", "packets", _8BIT, 1, "Packets received and refused by a "
        "rule of the switch port.",
    ),
    "port_xmit_constraint_errors": (
        "transmit_constraint_errors", "packets", _8BIT, 1, "Packets not sent because of a rule "
        "of the switch port.",
    ),
    "port_rcv_remote_physical_errors": (
        "receive_remote_physical_errors", "packets", _16BIT, 1, "Packets marked bad by the sender.",
    ),
    "port_rcv_switch_relay_errors": (
        "receive_switch_relay_errors", "packets", _16BIT, 1, "Packets a switch could not pass on.",
    ),
    "symbol_error": ("symbol_errors", "errors", _16BIT, 1, "Small link errors."),
    "link_error_recovery": (
        "link_error_recoveries", "events", _8BIT, 1, "Times the link recovered from an error.",
    ),
    "link_downed": ("link_downed", "events", _8BIT, 1, "Times the link failed to recover."),
    "local_link_integrity_errors": (
        "local_link_integrity_errors", "events", _4BIT, 1, "Times local errors passed a threshold.",
    ),
    "excessive_buffer_overrun_errors": (
        "excessive_buffer_overrun_errors", "events", _4BIT, 1, "Times buffers overran in a row.",
    ),
    "VL15_dropped": (
        "vl15_dropped", "packets", _16BIT, 1, "Management packets dropped for lack of buffers.",
    ),
}  # fmt: skip

PORT_COUNTERS = {
    file: PortCounter(f"tailwatch_infiniband_{name}_total", factor, top)
    for file, (name, _, top, factor, _) in _FILES.items()
}
"""Metric by the name of the file below counters."""

METRICS: list[Metric] = [
    *(
        node_metric(
            f"tailwatch_infiniband_{name}_total", "counter", unit, text,
            f"ports/<port>/counters/{file}", *_PORT,
        )
        for file, (name, unit, _, _, text) in _FILES.items()
    ),
    node_metric(
        "tailwatch_infiniband_hw_events_total", "counter", "events",
        "Counters of the driver under their own names; port is empty for those of the device.",
        "hw_counters", *_PORT, "counter",
    ),
    node_metric(
        "tailwatch_infiniband_counter_saturated", "gauge", "boolean",
        "1 while a counter sticks at its maximum: what happened since is not known. Absent "
        "otherwise.",
        "counters, widths of the PMA", *_PORT, "counter",
    ),
    node_metric(
        "tailwatch_infiniband_unreadable_files", "gauge", "files",
        "Counter files that gave an error or no number; they are left alone for an hour.",
        "counters, hw_counters", "node", "device",
    ),
    node_metric(
        "tailwatch_infiniband_port_state", "gauge", "state",
        "Logical state of a port: 1 down, 2 initialized by nobody, 3 armed, 4 active.",
        "ports/<port>/state", *_PORT,
    ),
    node_metric(
        "tailwatch_infiniband_port_physical_state", "gauge", "state",
        "Physical state of a port: 2 polling, 3 disabled, 5 link up.",
        "ports/<port>/phys_state", *_PORT,
    ),
    node_metric(
        "tailwatch_infiniband_port_rate_bytes_per_second", "gauge", "bytes per second",
        "Rate of a link as it was negotiated.", "ports/<port>/rate", *_PORT,
    ),
    node_metric(
        "tailwatch_infiniband_port_expected_active", "gauge", "boolean",
        "1 for a port that was active since the agent started, or whose card has fewer active "
        "ports than most cards; 0 for one nobody misses.",
        "states of the ports of all cards", *_PORT,
    ),
    node_metric(
        "tailwatch_infiniband_port_info", "info", "",
        "Link layer of a port; always 1.", "ports/<port>/link_layer", *_PORT, "link_layer",
    ),
    node_metric(
        "tailwatch_infiniband_device_info", "info", "",
        "What a device is and where it sits; always 1. role: compute, management (no GPU on its "
        "NUMA node, or EFA carries the traffic of this node) or virtual (an SR-IOV function).",
        "sysfs", "node", "device", "pci_bus_id", "numa_node", "driver", "firmware", "hca_type",
        "board_id", "role",
    ),
    node_metric(
        "tailwatch_infiniband_interface_up", "gauge", "boolean",
        "1 when the network interface of a device is up, else 0.", "device/net/<if>/operstate",
        "node", "device", "interface",
    ),
    node_metric(
        "tailwatch_infiniband_devices", "gauge", "devices",
        "InfiniBand and RoCE devices found; EFA devices are not among them.",
        "class/infiniband by driver", "node",
    ),
]  # fmt: skip
