"""The MIG instances of a GPU, by GPU instance id.

Contract: an instance is named by its GPU instance id, as Xid lines do, never by its place in the
list. Memory belongs to the GPU instance and is shared by its compute instances, so there is one
value for each GPU instance however many compute instances divide it.

Cost: five NVML calls an instance to list them, one an instance and read.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tailwatch.agents.node.nvml.calls import DeviceCalls
from tailwatch.agents.node.nvml.library import NvmlError

_PROFILE = re.compile(r"\bMIG (\S+)$")
_LEGACY = re.compile(r"^MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)$")


class MigInstance(NamedTuple):
    """One compute instance within one GPU instance, and its handle."""

    gpu_instance: int
    compute_instance: int
    uuid: str
    profile: str
    handle: Any


class MigIdentity(NamedTuple):
    """What an old MIG device id says of itself: the GPU and the two instance ids."""

    gpu: str
    gpu_instance: int
    compute_instance: int


def parse_legacy_uuid(uuid: str) -> MigIdentity | None:
    """Return what an id of the old form says; None for one of the new form.

    >>> parse_legacy_uuid("MIG-GPU-00000000-0000-0000-0000-000000000000/9/0")[1:]
    (9, 0)
    >>> parse_legacy_uuid("MIG-00000002-0000-0000-0000-000000000002")
    """
    match = _LEGACY.match(uuid)
    return MigIdentity(match[1], int(match[2]), int(match[3])) if match else None


def profile_of(name: str) -> str:
    """Return the profile in the name of a MIG device, "" when it is not known.

    >>> profile_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), profile_of("<<<NULL>>>")
    ('1g.10gb', '')
    """
    match = _PROFILE.search(name)
    return match[1] if match and "<" not in match[1] else ""


def instances(calls: DeviceCalls) -> list[MigInstance]:
    """Return the instances of a GPU in MIG mode; places that hold none are left out."""
    count = calls.ask("nvmlDeviceGetMaxMigDeviceCount") or 0
    found = []
    for place in range(count):
        try:
            handle = calls.library.call("nvmlDeviceGetMigDeviceHandleByIndex", calls.handle, place)
        except NvmlError as error:
            if error.code != "NOT_FOUND":
                calls.refused("nvmlDeviceGetMigDeviceHandleByIndex", error)
            continue
        gpu_instance = calls.ask_of(handle, "nvmlDeviceGetGpuInstanceId")
        if gpu_instance is None:
            continue
        found.append(
            MigInstance(
                gpu_instance=gpu_instance,
                compute_instance=calls.ask_of(handle, "nvmlDeviceGetComputeInstanceId") or 0,
                uuid=calls.ask_of(handle, "nvmlDeviceGetUUID", memo="mig") or "",
                profile=profile_of(calls.ask_of(handle, "nvmlDeviceGetName", memo="mig") or ""),
                handle=handle,
            )
        )
    return found
