"""Metrics of the node agent about the ranks of its node and about its own sources."""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, node_metric

_RANK = ("run", "node", "rank")
_SOURCE = ("node", "source", "device")

METRICS: list[Metric] = [
    node_metric(
        "tailwatch_node_records_total", "counter", "records",
        "Records taken from rings into the step log.", "rings", "node",
    ),
    node_metric(
        "tailwatch_node_records_lost_total", "counter", "records",
        "Records overwritten or damaged in a ring before they were read.", "ring sequences",
        "node",
    ),
    node_metric(
        "tailwatch_node_records_rejected_total", "counter", "records",
        "Records dropped because they cannot be read (unreadable), contradict their ring "
        "(identity) or hold impossible values (value).",
        "records against ring headers", "node", "reason",
    ),
    node_metric(
        "tailwatch_node_rings", "gauge", "rings", "Rings that are being read.", "rings", "node",
    ),
    node_metric(
        "tailwatch_node_rings_broken", "gauge", "rings",
        "Files that are no rings, or speak for a rank that belongs to another pod; the first 32 "
        "are named by tailwatch_source_up.",
        "ring headers", "node",
    ),
    node_metric(
        "tailwatch_node_rings_refused", "gauge", "rings",
        "Ring files over the most that one pod may have, and pods over the most that are read: "
        "anything above 0 means that the picture is not whole.",
        "ring directory", "node",
    ),
    node_metric(
        "tailwatch_node_claims_refused_total", "counter", "rings",
        "Rings that spoke for a rank that belongs to another pod and were not read; a pod that "
        "means no harm makes none.",
        "ring headers against their directories", "node",
    ),
    node_metric(
        "tailwatch_rank_last_mark_age_seconds", "gauge", "seconds",
        "Time since a rank left its newest mark.", "marks of the newest attempt", *_RANK,
    ),
    node_metric(
        "tailwatch_rank_last_step", "gauge", "step",
        "Number of the newest step a rank recorded.", "step records", *_RANK,
    ),
    node_metric(
        "tailwatch_rank_phase_seconds_total", "counter", "seconds",
        "Time of a rank by exclusive phase.", "step records", *_RANK, "phase",
    ),
    node_metric(
        "tailwatch_rank_peak_memory_bytes", "gauge", "bytes",
        "Peak memory of a rank's process; a rank reads it only every 64 steps.",
        "step records", *_RANK,
    ),
    node_metric(
        "tailwatch_source_up", "gauge", "boolean",
        "1 when the last read of a source succeeded and none hangs, else 0; device is empty for "
        "the source as a whole.",
        "collectors", *_SOURCE,
    ),
    node_metric(
        "tailwatch_source_age_seconds", "gauge", "seconds",
        "Time since a source was last read successfully.", "collectors", *_SOURCE,
    ),
    node_metric(
        "tailwatch_source_read_seconds", "gauge", "seconds",
        "Duration of the last read of a source, or of the one under way once it hangs.",
        "collectors", *_SOURCE,
    ),
    node_metric(
        "tailwatch_source_errors_total", "counter", "reads",
        "Reads of a source that failed, by error code; hung: over its deadline, gone: no longer "
        "there.",
        "collectors", *_SOURCE, "code",
    ),
    node_metric(
        "tailwatch_source_resets_total", "counter", "resets",
        "Reads in which a counter of the source was lower than before.",
        "collectors", *_SOURCE,
    ),
    node_metric(
        "tailwatch_node_paused", "gauge", "boolean",
        "1 while the agent was told to let go of all devices, else 0.", "SIGUSR1, SIGUSR2",
        "node",
    ),
]  # fmt: skip
