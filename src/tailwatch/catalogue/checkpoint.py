"""Metrics of checkpoints; the job agent makes them from events, so they survive the job and it.

What a trainer stands still for them is `tailwatch_job_phase_seconds_total{phase="checkpoint"}`.
"""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, job_metric

# Of a save: `stage` only in the background. Of a load: `load_verify` and `load`.
CHECKPOINT_PHASES = ("stage", "write", "commit", "verify", "retain", "load_verify", "load")
CHECKPOINT_STATES = ("staged", "written", "committed", "verified")
CHECKPOINT_FAILURES = (
    "no space",
    "input/output error",
    "read-only",
    "permission",
    "does not read back",
    "split view",
    "retention",
    "other",
)

_VERIFIED = "checkpoint_verified events"
_BOTH = "checkpoint_verified and restore events"

METRICS: list[Metric] = [
    job_metric(
        "tailwatch_checkpoint_refused_total", "counter", "checkpoints",
        "Checkpoints that failed verification and were not loaded.", "checkpoint_refused events",
    ),
    job_metric(
        "tailwatch_checkpoint_last_verified_step", "gauge", "step",
        "Step of the newest checkpoint that was verified.", _VERIFIED,
    ),
    job_metric(
        "tailwatch_checkpoint_last_verified_timestamp_seconds", "gauge", "seconds",
        "Unix time at which a checkpoint was last verified.", _VERIFIED,
    ),
    job_metric(
        "tailwatch_checkpoint_last_step", "gauge", "step",
        "Newest step that came as far as this: staged in memory, written, committed, verified.",
        "checkpoint_staged, _written, _committed, _verified events", "state",
    ),
    job_metric(
        "tailwatch_checkpoint_saves_total", "counter", "saves",
        "Checkpoints that were saved and verified.", _VERIFIED,
    ),
    job_metric(
        "tailwatch_checkpoint_saved_bytes_total", "counter", "bytes",
        "Bytes of the checkpoints that were saved and verified.", _VERIFIED,
    ),
    job_metric(
        "tailwatch_checkpoint_size_bytes", "gauge", "bytes",
        "Bytes of the newest verified checkpoint.", _VERIFIED,
    ),
    job_metric(
        "tailwatch_checkpoint_loads_total", "counter", "loads",
        "Checkpoints that were loaded.", "restore events",
    ),
    job_metric(
        "tailwatch_checkpoint_phase_seconds_total", "counter", "seconds",
        "Time of saves and loads by phase, on rank 0.", _BOTH, "phase",
    ),
    job_metric(
        "tailwatch_checkpoint_failures_total", "counter", "failures",
        "Saves that failed, and older checkpoints that could not be deleted, by reason.",
        "failure events", "reason",
    ),
    job_metric(
        "tailwatch_checkpoint_quarantined", "gauge", "checkpoints",
        "Checkpoints that lie in quarantine.", _BOTH,
    ),
    job_metric(
        "tailwatch_checkpoint_free_bytes", "gauge", "bytes",
        "Bytes free where the checkpoints lie.", _BOTH,
    ),
    job_metric(
        "tailwatch_checkpoint_free_inodes", "gauge", "inodes",
        "Inodes free where the checkpoints lie; absent where the file system has no such limit.",
        _BOTH,
    ),
    job_metric(
        "tailwatch_checkpoint_saves_until_full", "gauge", "saves",
        "Saves that still fit the disk and the quotas; absent when there is no end to it.",
        _VERIFIED,
    ),
]  # fmt: skip
