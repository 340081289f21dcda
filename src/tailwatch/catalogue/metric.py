"""What the catalogue holds of one metric, and how an area of it is written down.

Contract: a `Metric` is data; `node_metric` and `job_metric` fill in what all metrics of an agent
have in common.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram", "info"]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric; `source` says what the number is made from, `bounds` belongs to histograms."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...]
    source: str
    bounds: tuple[float, ...] = ()


def job_metric(
    name: str,
    kind: Kind,
    unit: str,
    text: str,
    source: str,
    *labels: str,
    bounds: tuple[float, ...] = (),
) -> Metric:
    """Return a metric of the job agent; `run` and `workload` come before its own labels."""
    return Metric(
        name=name,
        kind=kind,
        unit=unit,
        help=text,
        labels=("run", "workload", *labels),
        source=f"job agent: {source}",
        bounds=bounds,
    )


def node_metric(name: str, kind: Kind, unit: str, text: str, source: str, *labels: str) -> Metric:
    """Return a metric of the node agent with exactly these labels."""
    return Metric(
        name=name,
        kind=kind,
        unit=unit,
        help=text,
        labels=labels,
        source=f"node agent: {source}",
    )
