"""What a line of a log was found to mean."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["fatal", "warning", "info"]
Kind = Literal["xid", "sxid", "gpu", "driver", "nccl", "efa", "mlx5", "fabric_manager"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line that means something.

    `device` is a PCI address in the form of sysfs (`0000:3b:00.0`) or the name of an RDMA device,
    and empty when the line does not say which device it was: such a finding belongs to the node
    and is pinned on no device. `action` is what to do first; `hint` where to look after that.
    """

    kind: Kind
    code: str
    severity: Severity
    action: str
    meaning: str
    device: str = ""
    unit: str = ""
    hint: str = ""
    link: int | None = None
    subcode: int | None = None
    gpu_instance: int | None = None
    pid: int | None = None
    process: str = ""
    implies_xid: str = ""


def pci_address(text: str) -> str:
    """Return a PCI address as sysfs spells it, whatever the driver's way to write it.

    >>> pci_address("PCI:00000000:3B:00")
    '0000:3b:00.0'
    """
    address = text.lower().removeprefix("pci:")
    parts = address.split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    slot = parts[2] if "." in parts[2] else f"{parts[2]}.0"
    return f"{int(parts[0], 16):04x}:{parts[1]}:{slot}"
