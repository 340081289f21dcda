"""What each EC2 instance type has when it is whole: `instances.toml` as typed data.

Contract: `instance(name)` returns what is known of a type and None for a type that is not listed;
a fact that is not known is None. Numbers are per node. `this_instance` reads the type from the
firmware (DMI), which on Nitro instances names it.

Cost: one small file read once.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_name("instances.toml")


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One instance type; line rate in Gbit/s a device, links per GPU."""

    gpus: int | None = None
    nvlinks: int | None = None
    efa: int | None = None
    efa_gigabits: int | None = None
    efa_rdma_write: bool | None = None
    efa_srd_counters: bool | None = None


@functools.cache
def instances() -> dict[str, Instance]:
    """Return every type that is known, by name."""
    return msgspec.convert(tomllib.loads(_FILE.read_text()), dict[str, Instance])


def instance(name: str | None) -> Instance | None:
    """Return a type by its name; None when it is not listed."""
    return instances().get(name) if name else None


def this_instance(sysfs: Path) -> str | None:
    """Return the type of the machine under `sysfs`; None when the firmware does not name one."""
    try:
        name = (sysfs / "devices/virtual/dmi/id/product_name").read_text(errors="replace").strip()
    except OSError:
        return None
    return name if name in instances() else None
