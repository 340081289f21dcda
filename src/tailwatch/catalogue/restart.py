"""Metrics of restarts, made by the job agent from events, so they survive the job and it.

What has to be added for the whole cost of a fault is the work since the last checkpoint, which is
done again: `tailwatch_job_steps_total` counts those steps twice.
"""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, job_metric

# From the fault to the end of the first step, in this order.
RESTART_PARTS = ("detect", "teardown", "rendezvous", "import", "build", "load", "first_step")

_RESUMED = "resumed events of rank 0"

METRICS: list[Metric] = [
    job_metric(
        "tailwatch_restart_measured_total", "counter", "restarts",
        "Restarts whose parts were measured up to the first step.", _RESUMED,
    ),
    job_metric(
        "tailwatch_restart_part_seconds_total", "counter", "seconds",
        "Time of restarts by part; the parts add up to that from a fault to the end of the first "
        "step.", _RESUMED, "part",
    ),
    job_metric(
        "tailwatch_restart_last_part_seconds", "gauge", "seconds",
        "Time of the newest restart by part.", _RESUMED, "part",
    ),
]  # fmt: skip
