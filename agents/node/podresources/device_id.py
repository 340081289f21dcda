"""What a device id in PodResources says: which device, which part of it, which replica.

Contract: never raises. The replica is kept as the text it is ("0" is a replica, "" says only that
the device is shared, None that it is not). An id of no known form is `unknown` and kept whole.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Form = Literal["gpu", "mig", "minor", "efa", "pci", "unknown"]

_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_GPU = re.compile(rf"^(?:GPU-(?:{_UUID}|\d+)|{_UUID})$")
_MIG = re.compile(rf"^MIG-{_UUID}$")
_LEGACY_MIG = re.compile(rf"^MIG-(?P<gpu>GPU-{_UUID})/(?P<gi>\d+)/(?P<ci>\d+)$")
_MINOR = re.compile(r"^(?:nvidia|gpu-)?(?P<minor>\d+)(?:/gi(?P<gi>\d+))?$")
_PCI = re.compile(r"^pci-([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])$")
_RDMA = re.compile(r"^[A-Za-z][\w.-]{0,63}$")
_REPLICA = re.compile(r"(?:::(?P<plain>[^:]*)|/vgpu(?P<gke>\d*))$")
_NVIDIA = ("nvidia.com/", "gpu.nvidia.com")
_EFA = ("vpc.amazonaws.com/efa", "dra.net", "efa.networking.k8s.aws")


class DeviceId(NamedTuple):
    """One device id taken apart; `base` is the device, or its minor number for the form `minor`."""

    form: Form
    base: str
    gpu_instance: str
    replica: str | None


def parse_device_id(resource: str, text: str) -> DeviceId | None:
    """Return what a device id means; None for an empty one.

    >>> parse_device_id("nvidia.com/gpu", "nvidia0/gi3/vgpu0")
    DeviceId(form='minor', base='0', gpu_instance='3', replica='0')
    """
    if not text:
        return None
    replica = None
    base = text
    if shared := _REPLICA.search(text):
        base = text[: shared.start()]
        replica = (shared["plain"] if shared["plain"] is not None else shared["gke"]) or ""
    if resource.startswith(_EFA) and _RDMA.match(base) and not _PCI.match(base):
        return DeviceId("efa", base, "", replica)
    if _GPU.match(base):
        return DeviceId("gpu", base, "", replica)
    if _MIG.match(base):
        return DeviceId("mig", base, "", replica)
    if legacy := _LEGACY_MIG.match(base):
        return DeviceId("gpu", legacy["gpu"], legacy["gi"], replica)
    if pci := _PCI.match(base):
        return DeviceId("pci", f"{pci[1]}:{pci[2]}:{pci[3]}.{pci[4]}", "", replica)
    if minor := _MINOR.match(base):
        return DeviceId("minor", minor["minor"], minor["gi"] or "", replica)
    return DeviceId("unknown", base, "", replica)


def is_watched(resource: str) -> bool:
    """Whether a resource is one whose devices have series of their own.

    By prefix, because clusters rename the resources of NVIDIA's plug-in.
    """
    return resource.startswith((*_NVIDIA, *_EFA))
