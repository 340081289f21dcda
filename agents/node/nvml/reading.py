"""What is read of a GPU, as samples: the tables of fields and what each becomes.

Contract: pure functions from NVML's numbers to samples in base units. A number that is missing, or
that no such thing can have, makes no sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tailwatch.agents.node.nvml import fabric, gpm
from tailwatch.agents.node.nvml.calls import Field


class Sample(NamedTuple):
    """One sample without the labels `node` and `uuid` of its GPU."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class _Rule(NamedTuple):
    """A field, the metric it becomes without its prefix, the factor to base units, its labels."""

    field: int
    name: str
    factor: float = 1
    labels: tuple[tuple[str, str], ...] = ()


def _by(label: str, name: str, fields: Mapping[str, int], factor: float = 1) -> tuple[_Rule, ...]:
    return tuple(_Rule(f, name, factor, ((label, value),)) for value, f in fields.items())


_NANO, _MILLI = 1e-9, 1e-3
POWER_LIMIT, POWER_AVERAGE, POWER_NOW = 190, 185, 186

FAST: tuple[_Rule, ...] = (
    *_by(
        "reason",
        "clock_event_seconds_total",
        {
            "sw_power_cap": 74,
            "thermal_policy": 75,
            "sync_boost": 76,
            "board_limit": 77,
            "low_utilization": 78,
            "reliability": 79,
            "sw_thermal": 269,
            "hw_thermal": 270,
            "hw_power_brake": 271,
        },
        _NANO,
    ),
    _Rule(82, "temperature_celsius", 1, (("sensor", "memory"),)),
    _Rule(83, "energy_joules_total", _MILLI),
    _Rule(94, "pcie_replays_total"),
    *_by("direction", "pcie_bytes_total", {"transmit": 197, "receive": 198}),
    _Rule(230, "recovery_action"),
)
SLOW: tuple[_Rule, ...] = (
    _Rule(1, "ecc_enabled"),
    *(
        _Rule(f, "ecc_errors_total", 1, (("kind", kind), ("scope", scope)))
        for f, kind, scope in (
            (3, "corrected", "volatile"),
            (4, "uncorrected", "volatile"),
            (5, "corrected", "aggregate"),
            (6, "uncorrected", "aggregate"),
        )
    ),
    *_by("cause", "remapped_rows_total", {"correctable": 142, "uncorrectable": 143}),
    _Rule(144, "row_remap_pending"),
    _Rule(145, "row_remap_failed"),
    *_by("kind", "pcie_errors_total", {"correctable": 173, "non_fatal": 179, "fatal": 180}),
    _Rule(POWER_LIMIT, "power_limit_watts", _MILLI),
    *_by(
        "limit",
        "temperature_margin_limit_celsius",
        {"shutdown": 193, "slowdown": 194, "memory_max": 195, "gpu_max": 196},
    ),
)
POWER = (POWER_NOW, POWER_AVERAGE)

GPM = {
    gpm.GRAPHICS: "graphics_active_ratio",
    gpm.SM: "sm_active_ratio",
    gpm.OCCUPANCY: "sm_occupancy_ratio",
    gpm.TENSOR: "tensor_active_ratio",
    gpm.DRAM: "dram_active_ratio",
}
_MIB = 1 << 20
_GPM_NVLINK = {gpm.NVLINK_TX: "transmit", gpm.NVLINK_RX: "receive"}
GPM_OF_GPU = (*GPM, *_GPM_NVLINK)
GPM_OF_INSTANCE = (gpm.GRAPHICS, gpm.SM, gpm.TENSOR, gpm.DRAM)


class Kinds(NamedTuple):
    """A call that is asked once for each kind: the metric, NVML's numbers, the factor."""

    name: str
    numbers: Mapping[str, int]
    factor: float = 1


_CLOCKS = {"sm": 1, "memory": 2}
_MHZ = 1_000_000
CLOCKS = Kinds("tailwatch_gpu_clock_hertz", _CLOCKS, _MHZ)
CLOCKS_MAX = Kinds("tailwatch_gpu_clock_max_hertz", _CLOCKS, _MHZ)
THRESHOLDS = Kinds(
    "tailwatch_gpu_temperature_limit_celsius",
    {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3},
)


def from_fields(rules: Iterable[_Rule], values: Mapping[Field, float]) -> list[Sample]:
    """Return the samples of those fields that have a value."""
    return [
        Sample(f"tailwatch_gpu_{rule.name}", values[rule.field] * rule.factor, rule.labels)
        for rule in rules
        if rule.field in values
    ]


def power_watts(values: Mapping[Field, float]) -> float | None:
    """Return the power drawn now, else its average over the last second."""
    for field in POWER:
        if field in values:
            return values[field] * _MILLI
    return None


def ratio(per_cent: float) -> float | None:
    """Return a share between 0 and 1; None for what is no share."""
    return per_cent / 100 if 0 <= per_cent <= 100 else None


def from_memory(memory: Any, name: str, labels: tuple[tuple[str, str], ...] = ()) -> list[Sample]:
    """Return size and use of a memory as NVML's version 2 tells them."""
    parts = {"used": memory.used, "free": memory.free, "reserved": memory.reserved}
    return [
        Sample(f"tailwatch_{name}_memory_size_bytes", memory.total, labels),
        *(
            Sample(f"tailwatch_{name}_memory_bytes", value, (*labels, ("kind", kind)))
            for kind, value in parts.items()
        ),
    ]


def from_gpm(
    values: Mapping[int, float], name: str, labels: tuple[tuple[str, str], ...] = ()
) -> list[Sample]:
    """Return the profiling counters as shares, and NVLink's as bytes per second."""
    found = []
    for metric, value in values.items():
        share = ratio(value) if metric in GPM else None
        if share is not None:
            found.append(Sample(f"tailwatch_{name}_{GPM[metric]}", share, labels))
        elif metric in _GPM_NVLINK:
            direction = (("direction", _GPM_NVLINK[metric]),)
            found.append(
                Sample(
                    f"tailwatch_{name}_nvlink_bytes_per_second",
                    value * _MIB,
                    (*labels, *direction),
                )
            )
    return found


def from_fabric(info: Any) -> list[Sample]:
    """Return what the fabric says; nothing for a GPU without one."""
    joined = fabric.ready(info.state, info.status)
    if joined is None:
        return []
    prefix = "tailwatch_gpu_fabric"
    return [
        Sample(f"{prefix}_state", info.state),
        Sample(f"{prefix}_ready", int(joined)),
        *(
            Sample(f"{prefix}_fault", int(there), (("fault", fault),))
            for fault, there in fabric.faults(info.healthMask).items()
        ),
    ]
