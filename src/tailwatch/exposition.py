"""A snapshot of samples as Prometheus text 0.0.4, with types and help from the catalogue.

Contract: a sample that the catalogue does not describe, or whose labels are not exactly its
labels, raises; an unknown value is left out and never written as 0. Samples of one metric come
together under one HELP and TYPE, whatever order they were added in.

Cost: about 1 us a sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailwatch.catalogue import Metric, metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TYPES = {"info": "gauge"}


class Snapshot:
    """Collects samples and renders them once.

    >>> snapshot = Snapshot()
    >>> snapshot.add("tailwatch_node_rings", 4, node="node-0")
    >>> snapshot.render().decode().splitlines()[-1]
    'tailwatch_node_rings{node="node-0"} 4'
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, value: float | None, /, **labels: str | int) -> None:
        """Add one sample; None means unknown and adds nothing.

        Raises UnknownMetricError for a name, ValueError for labels the catalogue does not hold.
        """
        described = metric(name)
        text = _labels(described, labels)
        if described.kind == "histogram":
            raise ValueError(f"{name} is a histogram; use add_histogram")
        if value is not None:
            self._lines.setdefault(name, []).append(f"{name}{text} {number(value)}")

    def add_histogram(
        self, name: str, counts: Sequence[int], total: float, /, **labels: str | int
    ) -> None:
        """Add a histogram; `counts` holds one count a bound and one above all, not cumulated."""
        described = metric(name)
        if described.kind != "histogram" or len(counts) != len(described.bounds) + 1:
            raise ValueError(f"{name}: {len(counts)} counts, expected {len(described.bounds) + 1}")
        plain = _labels(described, labels)
        lines = self._lines.setdefault(name, [])
        opened = plain[:-1] + "," if plain else "{"
        running = 0
        for bound, count in zip((*described.bounds, math.inf), counts, strict=True):
            running += count
            lines.append(f'{name}_bucket{opened}le="{number(bound)}"}} {running}')
        lines.append(f"{name}_sum{plain} {number(total)}")
        lines.append(f"{name}_count{plain} {running}")

    def render(self) -> bytes:
        """Return the exposition."""
        parts = []
        for name, lines in self._lines.items():
            described = metric(name)
            text = described.help.replace("\\", r"\\").replace("\n", r"\n")
            kind = _TYPES.get(described.kind, described.kind)
            parts.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
            parts.append("\n".join(lines) + "\n")
        return "".join(parts).encode()


def number(value: float) -> str:
    """Return a value as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))


def _labels(described: Metric, labels: dict[str, str | int]) -> str:
    if labels.keys() != set(described.labels):
        raise ValueError(
            f"{described.name}: labels {sorted(labels)}, expected {sorted(described.labels)}"
        )
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(str(labels[name]))}"' for name in described.labels)
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
