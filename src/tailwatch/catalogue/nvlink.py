"""Metrics of the node agent about NVLink."""

from __future__ import annotations

from tailwatch.catalogue.metric import Kind, Metric, node_metric

_KINDS = "fields 206 to 221 (Blackwell), 161 to 163 (Hopper), 38, 45, 52, 59 (older)"
_BYTES = "fields 202, 204 (Blackwell), 138, 139 (older)"


def _nvlink(name: str, kind: Kind, unit: str, text: str, source: str, *labels: str) -> Metric:
    name = f"tailwatch_nvlink_{name}"
    return node_metric(name, kind, unit, text, f"NVML {source}", "node", "uuid", *labels)


METRICS: list[Metric] = [
    _nvlink(
        "bytes_total", "counter", "bytes", "Data over all NVLink links of a GPU.", _BYTES,
        "direction",
    ),
    _nvlink(
        "errors_total", "counter", "errors",
        "NVLink errors and recoveries of all links of a GPU, by the names its generation gives "
        "them.",
        _KINDS, "kind",
    ),
    _nvlink(
        "links", "gauge", "links",
        "Links that are up (active) and that should be (expected: by instance type, else those "
        "the GPU has, once one was up); absent in MIG mode.",
        "fields 165, 91", "state",
    ),
    _nvlink(
        "link_bytes_total", "counter", "bytes", "Data over one link; --nvlink.per-link.", _BYTES,
        "link", "direction",
    ),
    _nvlink(
        "link_errors_total", "counter", "errors", "Errors of one link; --nvlink.per-link.",
        _KINDS, "link", "kind",
    ),
    _nvlink(
        "link_active", "gauge", "boolean", "1 when a link is up; --nvlink.per-link.", "field 165",
        "link",
    ),
]  # fmt: skip
