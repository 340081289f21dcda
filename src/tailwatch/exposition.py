"""A snapshot of samples as Prometheus text 0.0.4 or OpenMetrics 1.0, described by the catalogue.

Contract: a sample that the catalogue does not describe, or whose labels are not exactly its
labels, raises; an unknown value is left out and never written as 0. Samples of one metric come
together under one HELP and TYPE, whatever order they were added in; of two samples of one series
the last one counts. A label value is cut at `LONGEST_LABEL` characters.

Cost: about 1 us a sample whose labels were seen before, 3 us else, 0.3 us for one that is put;
16,384 texts of labels are kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from tailwatch.catalogue import Metric, metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LONGEST_LABEL = 512
_TYPES = {"info": "gauge"}


class Snapshot:
    """Collects samples and renders them once.

    >>> snapshot = Snapshot()
    >>> snapshot.add("tailwatch_node_rings", 4, node="node-0")
    >>> snapshot.render().decode().splitlines()[-1]
    'tailwatch_node_rings{node="node-0"} 4'
    """

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, str]] = {}

    def add(self, name: str, value: float | None, /, **labels: str | int) -> None:
        """Add one sample; None means unknown and adds nothing.

        Raises UnknownMetricError for a name, ValueError for labels the catalogue does not hold.
        """
        self.put(name, _series(name, tuple(labels.items())), value)

    def put(self, name: str, series: str, value: float | None) -> None:
        """Add one sample of a series that `series` described; much cheaper than `add`."""
        if value is not None:
            text = str(value) if type(value) is int else number(value)
            self._samples.setdefault(name, {})[series] = text

    def add_histogram(
        self, name: str, counts: Sequence[int], total: float, /, **labels: str | int
    ) -> None:
        """Add a histogram; `counts` holds one count a bound and one above all, not cumulated."""
        described = metric(name)
        if described.kind != "histogram" or len(counts) != len(described.bounds) + 1:
            raise ValueError(f"{name}: {len(counts)} counts, expected {len(described.bounds) + 1}")
        plain = _labels(described, labels)
        samples = self._samples.setdefault(name, {})
        opened = plain[:-1] + "," if plain else "{"
        running = 0
        for bound, count in zip((*described.bounds, math.inf), counts, strict=True):
            running += count
            le = number(bound) if math.isinf(bound) else repr(float(bound))
            samples[f'{name}_bucket{opened}le="{le}"}}'] = str(running)
        samples[f"{name}_sum{plain}"] = number(total)
        samples[f"{name}_count{plain}"] = str(running)

    def render(self) -> bytes:
        """Return the exposition as Prometheus text."""
        parts = []
        for name, samples in self._samples.items():
            described = metric(name)
            kind = _TYPES.get(described.kind, described.kind)
            parts.append(f"# HELP {name} {_help(described)}\n# TYPE {name} {kind}\n")
            parts += [f"{series} {value}\n" for series, value in samples.items()]
        return "".join(parts).encode(errors="replace")

    def render_openmetrics(self) -> bytes:
        """Return the exposition as OpenMetrics."""
        parts = []
        for name, samples in self._samples.items():
            described = metric(name)
            family = name
            if described.kind in ("counter", "info"):
                family = name.removesuffix("_total").removesuffix("_info")
            text = _help(described).replace('"', r"\"")
            parts.append(f"# HELP {family} {text}\n# TYPE {family} {described.kind}\n")
            parts += [f"{series} {value}\n" for series, value in samples.items()]
        parts.append("# EOF\n")
        return "".join(parts).encode(errors="replace")


def number(value: float) -> str:
    """Return a value as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))


def series(name: str, /, **labels: str | int) -> str:
    """Return name and labels as `Snapshot.put` takes them; raises as `Snapshot.add` does."""
    return _series(name, tuple(labels.items()))


@functools.lru_cache(maxsize=16384)
def _series(name: str, labels: tuple[tuple[str, str | int], ...]) -> str:
    described = metric(name)
    text = _labels(described, dict(labels))
    if described.kind == "histogram":
        raise ValueError(f"{name} is a histogram; use add_histogram")
    return name + text


def _help(described: Metric) -> str:
    return described.help.replace("\\", r"\\").replace("\n", r"\n")


def _labels(described: Metric, labels: dict[str, str | int]) -> str:
    if labels.keys() != set(described.labels):
        raise ValueError(
            f"{described.name}: labels {sorted(labels)}, expected {sorted(described.labels)}"
        )
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(str(labels[name])[:LONGEST_LABEL])}"' for name in described.labels)
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
