"""Every metric of Tailwatch, once: its name, type, unit, help, labels and where it comes from.

Contract: agents emit only what stands here, rules and dashboards refer only to what stands here,
and `docs/metrics.md` is this list printed (`python -m tailwatch.catalogue`). Base units; `_total`
on counters and nowhere else; `rank` never on a histogram; `attempt` only on an info metric; never
a label `job`, which is Prometheus' own. A change of a name breaks rules and dashboards of others
and goes to the changelog.
"""

from __future__ import annotations

from tailwatch.catalogue import (
    checkpoint,
    efa,
    gpu,
    host,
    infiniband,
    job,
    node,
    nvlink,
    pods,
    restart,
    xid,
)
from tailwatch.catalogue.job import STEP_SECONDS_BOUNDS
from tailwatch.catalogue.metric import Kind, Metric

__all__ = [
    "CATALOGUE",
    "STEP_SECONDS_BOUNDS",
    "Kind",
    "Metric",
    "UnknownMetricError",
    "markdown",
    "metric",
    "metric_of_sample",
]


class UnknownMetricError(LookupError):
    """A metric was named that the catalogue does not hold."""


CATALOGUE: dict[str, Metric] = {
    metric.name: metric
    for area in (job, restart, checkpoint, node, efa, infiniband, gpu, nvlink, xid, pods, host)
    for metric in area.METRICS
}


def metric(name: str) -> Metric:
    """Return the metric of that name; raise UnknownMetricError when there is none."""
    try:
        return CATALOGUE[name]
    except KeyError:
        raise UnknownMetricError(f"metric {name} is not in the catalogue") from None


def metric_of_sample(name: str) -> Metric:
    """Return the metric a sample belongs to: for a histogram also `_bucket`, `_sum`, `_count`."""
    for suffix in ("_bucket", "_sum", "_count"):
        base = CATALOGUE.get(name.removesuffix(suffix))
        if name.endswith(suffix) and base is not None and base.kind == "histogram":
            return base
    return metric(name)


def markdown() -> str:
    """Return the catalogue as the page `docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Printed by `python -m tailwatch.catalogue`; do not edit. Labels of the scrape itself",
        "(`instance`, `job`) come on top.",
        "",
        "| metric | type | unit | labels | meaning | source |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(CATALOGUE):
        m = CATALOGUE[name]
        labels = ", ".join(f"`{label}`" for label in m.labels)
        lines.append(
            f"| `{name}` | {m.kind} | {m.unit or '-'} | {labels} | {m.help} | {m.source} |"
        )
    return "\n".join(lines) + "\n"
