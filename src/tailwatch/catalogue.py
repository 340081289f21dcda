"""Every metric of Tailwatch, once: its name, type, unit, help, labels and where it comes from.

Contract: agents emit only what stands here, rules and dashboards refer only to what stands here,
and `docs/metrics.md` is this list printed (`python -m tailwatch.catalogue`). Base units; `_total`
on counters and nowhere else; `rank` never on a histogram; `attempt` only on an info metric; never
a label `job`, which is Prometheus' own. A change of a name breaks rules and dashboards of others
and goes to the changelog.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram", "info"]


def _bounds() -> tuple[float, ...]:
    """Return 1 ms to 60 s in steps of at most 1.25, each at three significant digits."""
    bounds = [float(f"{0.001 * 1.24**k:.3g}") for k in range(52)]
    return (*(b for b in bounds if b < 60.0), 60.0)


STEP_SECONDS_BOUNDS = _bounds()


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric; `source` says what the number is made from, `bounds` belongs to histograms."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...]
    source: str
    bounds: tuple[float, ...] = ()


class UnknownMetricError(LookupError):
    """A metric was named that the catalogue does not hold."""


_JOB = ("run", "workload")
_CONFIGURATION = (*_JOB, "configuration")
_RANK = ("run", "node", "rank")
_WINDOW = "last <= 4,096 comparable job steps of the current configuration"


def _quantiles() -> list[Metric]:
    found = []
    for what, noun, source in (
        ("step", "a job step", _WINDOW),
        ("iteration", "an iteration", "last <= 4,096 comparable iterations"),
    ):
        for q in (50, 95, 99):
            found.append(
                Metric(
                    name=f"tailwatch_job_{what}_p{q}_seconds",
                    kind="gauge",
                    unit="seconds",
                    help=f"p{q} of the duration of {noun}, as an order statistic.",
                    labels=_JOB,
                    source=f"job agent: {source}",
                )
            )
    return found


def _job(
    name: str,
    kind: Kind,
    unit: str,
    text: str,
    source: str,
    *labels: str,
    bounds: tuple[float, ...] = (),
) -> Metric:
    return Metric(
        name=name,
        kind=kind,
        unit=unit,
        help=text,
        labels=(*_JOB, *labels),
        source=f"job agent: {source}",
        bounds=bounds,
    )


def _node(name: str, kind: Kind, unit: str, text: str, source: str, *labels: str) -> Metric:
    return Metric(
        name=name,
        kind=kind,
        unit=unit,
        help=text,
        labels=labels,
        source=f"node agent: {source}",
    )


_METRICS: tuple[Metric, ...] = (
    _job(
        "tailwatch_job_steps_total", "counter", "steps",
        "Job steps that all ranks completed; a step computed again after a restart counts again.",
        "step records of all ranks of an attempt", "stage",
    ),
    _job(
        "tailwatch_job_step_seconds", "histogram", "seconds",
        "Duration of a job step: that of its slowest rank. For heat maps; p99 has its own gauges.",
        "step records, one sample a job step", bounds=STEP_SECONDS_BOUNDS,
    ),
    *_quantiles(),
    _job(
        "tailwatch_job_step_p99_lower_seconds", "gauge", "seconds",
        "Lower bound of the step p99, one-sided at 95 %.", f"{_WINDOW}, effective sample size",
    ),
    _job(
        "tailwatch_job_step_p99_upper_seconds", "gauge", "seconds",
        "Upper bound of the step p99, one-sided at 95 %; absent below n_eff 299.",
        f"{_WINDOW}, effective sample size",
    ),
    _job(
        "tailwatch_job_step_n_eff", "gauge", "steps",
        "Independent steps that say as much about p99 as the window does.", _WINDOW,
    ),
    _job(
        "tailwatch_job_baseline_p99_seconds", "gauge", "seconds",
        "p99 of the frozen baseline of a configuration.",
        "first consecutive comparable steps with n_eff >= 299", "configuration",
    ),
    _job(
        "tailwatch_job_baseline_p99_lower_seconds", "gauge", "seconds",
        "Lower bound of the baseline's p99, one-sided at 95 %.", "baseline", "configuration",
    ),
    _job(
        "tailwatch_job_baseline_p99_upper_seconds", "gauge", "seconds",
        "Upper bound of the baseline's p99, one-sided at 95 %; steps are judged by it.",
        "baseline", "configuration",
    ),
    _job(
        "tailwatch_job_baseline_n_eff", "gauge", "steps",
        "Effective sample size of the baseline.", "baseline", "configuration",
    ),
    _job(
        "tailwatch_job_baseline_steps", "gauge", "steps",
        "Steps in the baseline.", "baseline", "configuration",
    ),
    _job(
        "tailwatch_job_baseline_first_step", "gauge", "step",
        "Number of the first step of the baseline.", "baseline", "configuration",
    ),
    _job(
        "tailwatch_job_baseline_last_step", "gauge", "step",
        "Number of the last step of the baseline.", "baseline", "configuration",
    ),
    _job(
        "tailwatch_job_baseline_known", "gauge", "boolean",
        "1 when the current configuration has a baseline, else 0.", "baselines",
    ),
    _job(
        "tailwatch_job_steps_judged_total", "counter", "steps",
        "Comparable steps that were compared with a baseline.", "job steps after the baseline",
    ),
    _job(
        "tailwatch_job_steps_over_baseline_total", "counter", "steps",
        "Judged steps above the upper bound of the baseline's p99.",
        "job steps after the baseline",
    ),
    _job(
        "tailwatch_rank_late_seconds_total", "counter", "seconds",
        "How much later than its peers a rank came to the exchanges of its steps; warm-up left "
        "out.",
        "median of the other ranks' waits minus its own, not below 0, summed over the groups that "
        "wait for each other", "node", "rank",
    ),
    _job(
        "tailwatch_job_lateness_steps_total", "counter", "steps",
        "Job steps for which the ranks' lateness was measured, warm-up left out: what late seconds "
        "are to be divided by.",
        "job steps with waits in their records",
    ),
    _job(
        "tailwatch_job_restarts_total", "counter", "restarts",
        "Attempts after the first one that was seen.", "attempt numbers in the records",
    ),
    _job(
        "tailwatch_job_world_size", "gauge", "ranks",
        "Ranks of the current attempt.", "step records",
    ),
    _job(
        "tailwatch_job_expected_world_size", "gauge", "ranks",
        "Ranks the job is meant to have.", "--expected-world-size",
    ),
    _job(
        "tailwatch_checkpoint_refused_total", "counter", "checkpoints",
        "Checkpoints that failed verification and were not loaded.", "checkpoint_refused events",
    ),
    _job(
        "tailwatch_checkpoint_last_verified_step", "gauge", "step",
        "Step of the newest checkpoint that was verified.", "checkpoint_verified events",
    ),
    _job(
        "tailwatch_checkpoint_last_verified_timestamp_seconds", "gauge", "seconds",
        "Unix time at which a checkpoint was last verified.", "checkpoint_verified events",
    ),
    _job(
        "tailwatch_job_last_step_timestamp_seconds", "gauge", "seconds",
        "Unix time of the end of the newest job step; absent once the job has finished.",
        "step records, clock of the slowest rank's host",
    ),
    _job(
        "tailwatch_job_reward", "gauge", "reward",
        "Mean reward of the newest job step.", "step records, mean over ranks",
    ),
    _job(
        "tailwatch_job_loss", "gauge", "loss",
        "Loss of the newest job step, as rank 0 recorded it; it is a global loss.",
        "step records of rank 0",
    ),
    _job(
        "tailwatch_job_attempt_info", "info", "",
        "The current attempt and its configuration; always 1.", "step records",
        "attempt", "configuration",
    ),
    _job(
        "tailwatch_job_phase_seconds_total", "counter", "seconds",
        "Time of job steps by exclusive phase, mean over ranks; the phases add up to the step.",
        "step records", "phase",
    ),
    _job(
        "tailwatch_expert_load_max_ratio", "gauge", "ratio",
        "Tokens of the busiest expert over the mean of all experts, newest job step.",
        "tokens per expert in the step records",
    ),
    _node(
        "tailwatch_node_records_total", "counter", "records",
        "Records taken from rings into the step log.", "rings", "node",
    ),
    _node(
        "tailwatch_node_records_lost_total", "counter", "records",
        "Records overwritten or damaged in a ring before they were read.", "ring sequences",
        "node",
    ),
    _node(
        "tailwatch_node_records_rejected_total", "counter", "records",
        "Records dropped because they cannot be read (unreadable), contradict their ring "
        "(identity) or hold impossible values (value).",
        "records against ring headers", "node", "reason",
    ),
    _node(
        "tailwatch_node_rings", "gauge", "rings", "Rings that are being read.", "rings", "node",
    ),
    _node(
        "tailwatch_rank_last_mark_age_seconds", "gauge", "seconds",
        "Time since a rank left its newest mark.", "marks of the newest attempt", *_RANK,
    ),
    _node(
        "tailwatch_rank_last_step", "gauge", "step",
        "Number of the newest step a rank recorded.", "step records", *_RANK,
    ),
    _node(
        "tailwatch_rank_phase_seconds_total", "counter", "seconds",
        "Time of a rank by exclusive phase.", "step records", *_RANK, "phase",
    ),
    _node(
        "tailwatch_rank_peak_memory_bytes", "gauge", "bytes",
        "Peak memory of a rank's process; a rank reads it only every 64 steps.",
        "step records", *_RANK,
    ),
    _node(
        "tailwatch_source_up", "gauge", "boolean",
        "1 when the last read of a source succeeded, else 0.", "collectors", "node", "source",
    ),
    _node(
        "tailwatch_source_age_seconds", "gauge", "seconds",
        "Time since a source was last read successfully.", "collectors", "node", "source",
    ),
    _node(
        "tailwatch_source_read_seconds", "gauge", "seconds",
        "Duration of the last read of a source.", "collectors", "node", "source",
    ),
)  # fmt: skip

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in _METRICS}


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


if __name__ == "__main__":
    print(markdown(), end="")
