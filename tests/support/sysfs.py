"""Builds what a node shows below /sys, as instance types have it: RDMA, GPUs and network.

Values follow from a device's number and the name of its file, so that no two series are alike.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from tailwatch.catalogue.efa import DEVICE_COUNTERS, PORT_COUNTERS, RESOURCE_ERRORS

SRD = (
    "retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events",
    "impaired_remote_conn_events",
)  # fmt: skip
MLX5_COUNTERS = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
    "local_link_integrity_errors", "multicast_rcv_packets", "multicast_xmit_packets",
    "port_rcv_constraint_errors", "port_rcv_data", "port_rcv_errors", "port_rcv_packets",
    "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards", "port_xmit_packets",
    "port_xmit_wait", "symbol_error", "unicast_rcv_packets", "unicast_xmit_packets",
)  # fmt: skip
MLX5_HW_COUNTERS = (
    "duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err",
    "out_of_buffer", "out_of_sequence", "packet_seq_err", "req_cqe_error", "rnr_nak_retry_err",
    "roce_adp_retrans", "rx_read_requests", "rx_write_requests",
)  # fmt: skip


def write(path: Path, text: str | int) -> None:
    """Write a file in place, with the folders above it.

    As with the kernel's own files, who reads meanwhile sees the old text or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Never shorter than before: cut first, it would be empty for a moment.
        size = os.fstat(descriptor).st_size
        os.pwrite(descriptor, f"{text}\n".encode().ljust(size, b"\n"), 0)
    finally:
        os.close(descriptor)


def link(path: Path, target: Path) -> None:
    """Make a relative link, as sysfs does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


class Sysfs:
    """A tree below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("class/infiniband", "class/net", "bus/pci/devices", "devices"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def pci(
        self, address: str, bridge: str, vendor: str, device: str, *, driver: str = "",
        numa: int = 0, kind: str = "0x020000",
    ) -> Path:  # fmt: skip
        """Add a PCI device behind a bridge and return its folder."""
        folder = self.root / "devices" / f"pci{bridge[:7]}" / bridge / address
        for name, text in (
            ("vendor", vendor), ("device", device), ("numa_node", numa), ("class", kind),
        ):  # fmt: skip
            write(folder / name, text)
        if driver:
            (self.root / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            link(folder / "driver", self.root / "bus/pci/drivers" / driver)
        link(self.root / "bus/pci/devices" / address, folder)
        return folder

    def interface(self, name: str, mac: str, *, pci: Path | None = None, up: bool = True) -> None:
        """Add a network interface, of a PCI device or virtual."""
        folder = (pci or self.root / "devices/virtual") / "net" / name
        write(folder / "address", mac)
        write(folder / "operstate", "up" if up else "down")
        write(folder / "carrier", int(up))
        for direction in ("rx", "tx"):
            write(folder / f"statistics/{direction}_bytes", _value(f"{name}{direction}"))
        if pci is not None:
            link(folder / "device", pci)
        link(self.root / "class/net" / name, folder)

    def rdma(self, name: str, pci: Path) -> Path:
        """Add an entry of class infiniband and return its folder."""
        folder = pci / "infiniband" / name
        folder.mkdir(parents=True)
        link(folder / "device", pci)
        link(self.root / "class/infiniband" / name, folder)
        return folder

    def efa(
        self, name: str, address: str, bridge: str, device: str, *, numa: int, srd: bool,
        write_wr: bool = True, driver: str = "efa",
    ) -> Path:  # fmt: skip
        """Add an EFA device with its counters as a driver of today lays them out."""
        folder = self.rdma(
            name, self.pci(address, bridge, "0x1d0f", device, driver=driver, numa=numa)
        )
        for file in PORT_COUNTERS:
            if file in SRD and not srd:
                continue
            idle = file.startswith("rdma_write") and not write_wr
            value = 0 if idle else _value(f"{name}{file}")
            write(folder / "ports/1/hw_counters" / file, value)
        write(folder / "ports/1/hw_counters/lifespan", 10)
        write(folder / "ports/1/state", "4: ACTIVE")
        write(folder / "ports/1/rate", "100 Gb/sec (4X EDR)")
        number = zlib.crc32(name.encode()) & 0xFFFF
        write(folder / "ports/1/gids/0", f"fe80:0000:0000:0000:04cf:deff:fead:{number:04x}")
        for file in (*DEVICE_COUNTERS, *RESOURCE_ERRORS):
            fault = file.endswith("_err") or file == "no_completion_cmds"
            write(folder / "hw_counters" / file, 0 if fault else _value(f"{name}{file}") % 10000)
        return folder

    def mlx5(
        self, name: str, address: str, bridge: str, *, numa: int = 0, ports: int = 1,
        state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", interface: str = "",
    ) -> Path:  # fmt: skip
        """Add a ConnectX device with its counters."""
        pci = self.pci(address, bridge, "0x15b3", "0x1021", driver="mlx5_core", numa=numa)
        folder = self.rdma(name, pci)
        write(folder / "fw_ver", "28.39.2048")
        write(folder / "hca_type", "MT4129")
        write(folder / "board_id", "MT_0000000838")
        for port in range(1, ports + 1):
            self.port(folder / "ports" / str(port), state, rate)
            for file in MLX5_COUNTERS:
                data = file.endswith(("data", "packets", "wait"))
                value = _value(f"{name}{port}{file}") if data else 0
                write(folder / "ports" / str(port) / "counters" / file, value)
            for file in MLX5_HW_COUNTERS:
                value = _value(f"{name}{port}{file}")
                write(folder / "ports" / str(port) / "hw_counters" / file, value)
        if interface:
            self.interface(
                interface, f"02:00:00:00:00:{zlib.crc32(name.encode()) & 255:02x}", pci=pci
            )
        return folder

    @staticmethod
    def port(folder: Path, state: str, rate: str) -> None:
        """Write the states of a port."""
        write(folder / "state", state)
        write(folder / "phys_state", "5: LinkUp" if state.startswith(("4", "2")) else "3: Disabled")
        write(folder / "rate", rate)
        write(folder / "link_layer", "InfiniBand")

    def gpu(self, address: str, bridge: str, *, numa: int) -> None:
        """Add an NVIDIA GPU."""
        self.pci(address, bridge, "0x10de", "0x2330", driver="nvidia", numa=numa, kind="0x030200")

    def instance_type(self, name: str) -> None:
        """Let the firmware name the instance type."""
        write(self.root / "devices/virtual/dmi/id/product_name", name)


def _value(text: str) -> int:
    return zlib.crc32(text.encode()) * 1000 + len(text)


EFA_TYPES = {
    "p4d.24xlarge": (4, "0xefa0", False, False),
    "p5.48xlarge": (32, "0xefa1", True, True),
    "p5en.48xlarge": (16, "0xefa2", True, True),
    "p6-b200.48xlarge": (8, "0xefa3", True, True),
}
"""Devices, PCI id, SRD counters, RDMA write."""


def efa_node(root: Path, name: str) -> Sysfs:
    """Build a node of an instance type: GPUs on eight bridges, the EFA devices spread over them."""
    tree = Sysfs(root)
    tree.instance_type(name)
    devices, device_id, srd, write_wr = EFA_TYPES[name]
    write(root / "module/efa/version", "2.17.2g")
    bridges = [f"0000:{0x40 + 16 * index:02x}:01.0" for index in range(8)]
    for index, bridge in enumerate(bridges):
        tree.gpu(f"{bridge[:5]}{0x4F + 16 * index:02x}:00.0", bridge, numa=index // 4)
    for index in range(devices):
        bridge = bridges[index * 8 // devices]
        bus = int(bridge[5:7], 16) + 1 + index % max(devices // 8, 1)
        tree.efa(
            f"rdmap{bus}s0", f"0000:{bus:02x}:00.0", bridge, device_id,
            numa=index * 2 // devices, srd=srd, write_wr=write_wr,
        )  # fmt: skip
    eni = tree.pci("0000:01:00.0", "0000:00:01.0", "0x1d0f", "0xec20", driver="ena")
    tree.interface("eth0", "06:cf:de:ad:be:ef", pci=eni)
    tree.interface("lo", "00:00:00:00:00:00")
    if name.startswith("p6-b200"):
        for index in range(2):
            tree.mlx5(
                f"ibp{115 + index}s0f0", f"0000:{115 + index:02x}:00.0", "0000:70:02.0",
                state="1: DOWN",
            )  # fmt: skip
    return tree


def infiniband_node(root: Path, devices: int = 8) -> Sysfs:
    """Build a node with ConnectX devices, one a GPU."""
    tree = Sysfs(root)
    for index in range(devices):
        bridge = f"0000:{0x10 + 4 * index:02x}:01.0"
        bus = int(bridge[5:7], 16) + 1
        if index < 8:
            tree.gpu(f"0000:{bus + 1:02x}:00.0", bridge, numa=index // 4)
        tree.mlx5(
            f"mlx5_{index}", f"0000:{bus:02x}:00.0", bridge, numa=index // 4 % 2,
            interface=f"ib{index}",
        )  # fmt: skip
    return tree
