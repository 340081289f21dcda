"""Metrics of the diagnosis, exported by whoever runs it."""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, job_metric

METRICS: list[Metric] = [
    job_metric(
        "tailwatch_detector_state", "gauge", "boolean",
        "1 for the state a detector is in (ok, waiting, no_data, not_a_number, dead_input), else "
        "0: a blind detector does not look like a healthy job.",
        "self-check of the analysis", "detector", "state",
    ),
    job_metric(
        "tailwatch_diagnosis_verdict", "gauge", "boolean",
        "1 for the verdict of the newest diagnosis, else 0.", "analysis of step records",
        "verdict",
    ),
    job_metric(
        "tailwatch_diagnosis_slowdown_ratio", "gauge", "ratio",
        "Step time over that without the named cause.", "analysis of step records",
    ),
    job_metric(
        "tailwatch_diagnosis_confidence_ratio", "gauge", "ratio",
        "Lower 95 % bound of the share of steps that show the named cause.",
        "analysis of step records",
    ),
    job_metric(
        "tailwatch_diagnosis_worker_ratio", "gauge", "ratio",
        "Time of an accused rank in the named phase over that of its peers; absent when nobody is "
        "accused.",
        "analysis of step records", "node", "rank", "phase",
    ),
]  # fmt: skip
