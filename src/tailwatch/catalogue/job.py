"""Metrics of the job agent."""

from __future__ import annotations

from tailwatch.catalogue.metric import Metric, job_metric


def _bounds() -> tuple[float, ...]:
    """Return 1 ms to 60 s in steps of at most 1.25, each at three significant digits."""
    bounds = [float(f"{0.001 * 1.24**k:.3g}") for k in range(52)]
    return (*(b for b in bounds if b < 60.0), 60.0)


STEP_SECONDS_BOUNDS = _bounds()

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
                    labels=("run", "workload"),
                    source=f"job agent: {source}",
                )
            )
    return found


METRICS: list[Metric] = [
    job_metric(
        "tailwatch_job_steps_total", "counter", "steps",
        "Job steps that all ranks completed; a step computed again after a restart counts again.",
        "step records of all ranks of an attempt", "stage",
    ),
    job_metric(
        "tailwatch_job_step_seconds", "histogram", "seconds",
        "Duration of a job step: that of its slowest rank. For heat maps; p99 has its own gauges.",
        "step records, one sample a job step", bounds=STEP_SECONDS_BOUNDS,
    ),
    *_quantiles(),
    job_metric(
        "tailwatch_job_step_p99_lower_seconds", "gauge", "seconds",
        "Lower bound of the step p99, one-sided at 95 %.", f"{_WINDOW}, effective sample size",
    ),
    job_metric(
        "tailwatch_job_step_p99_upper_seconds", "gauge", "seconds",
        "Upper bound of the step p99, one-sided at 95 %; absent below n_eff 299.",
        f"{_WINDOW}, effective sample size",
    ),
    job_metric(
        "tailwatch_job_step_n_eff", "gauge", "steps",
        "Independent steps that say as much about p99 as the window does.", _WINDOW,
    ),
    job_metric(
        "tailwatch_job_baseline_p99_seconds", "gauge", "seconds",
        "p99 of the frozen baseline of a configuration.",
        "first consecutive comparable steps with n_eff >= 299", "configuration",
    ),
    job_metric(
        "tailwatch_job_baseline_p99_lower_seconds", "gauge", "seconds",
        "Lower bound of the baseline's p99, one-sided at 95 %.", "baseline", "configuration",
    ),
    job_metric(
        "tailwatch_job_baseline_p99_upper_seconds", "gauge", "seconds",
        "Upper bound of the baseline's p99, one-sided at 95 %; steps are judged by it.",
        "baseline", "configuration",
    ),
    job_metric(
        "tailwatch_job_baseline_n_eff", "gauge", "steps",
        "Effective sample size of the baseline.", "baseline", "configuration",
    ),
    job_metric(
        "tailwatch_job_baseline_steps", "gauge", "steps",
        "Steps in the baseline.", "baseline", "configuration",
    ),
    job_metric(
        "tailwatch_job_baseline_first_step", "gauge", "step",
        "Number of the first step of the baseline.", "baseline", "configuration",
    ),
    job_metric(
        "tailwatch_job_baseline_last_step", "gauge", "step",
        "Number of the last step of the baseline.", "baseline", "configuration",
    ),
    job_metric(
        "tailwatch_job_baseline_known", "gauge", "boolean",
        "1 when the current configuration has a baseline, else 0.", "baselines",
    ),
    job_metric(
        "tailwatch_job_steps_judged_total", "counter", "steps",
        "Comparable steps that were compared with a baseline.", "job steps after the baseline",
    ),
    job_metric(
        "tailwatch_job_steps_over_baseline_total", "counter", "steps",
        "Judged steps above the upper bound of the baseline's p99.",
        "job steps after the baseline",
    ),
    job_metric(
        "tailwatch_rank_late_seconds_total", "counter", "seconds",
        "How much later than its peers a rank came to the exchanges of its steps; warm-up left "
        "out.",
        "median of the other ranks' waits minus its own, not below 0, summed over the groups that "
        "wait for each other", "node", "rank",
    ),
    job_metric(
        "tailwatch_job_lateness_steps_total", "counter", "steps",
        "Job steps for which the ranks' lateness was measured, warm-up left out: what late seconds "
        "are to be divided by.",
        "job steps with waits in their records",
    ),
    job_metric(
        "tailwatch_job_restarts_total", "counter", "restarts",
        "Attempts after the first one that was seen.", "attempt numbers in the records",
    ),
    job_metric(
        "tailwatch_job_world_size", "gauge", "ranks",
        "Ranks of the current attempt.", "step records",
    ),
    job_metric(
        "tailwatch_job_expected_world_size", "gauge", "ranks",
        "Ranks the job is meant to have.", "--expected-world-size",
    ),
    job_metric(
        "tailwatch_job_last_step_timestamp_seconds", "gauge", "seconds",
        "Unix time of the end of the newest job step; absent once the job has finished.",
        "step records, clock of the slowest rank's host",
    ),
    job_metric(
        "tailwatch_job_reward", "gauge", "reward",
        "Mean reward of the newest job step.", "step records, mean over ranks",
    ),
    job_metric(
        "tailwatch_job_eval_reward", "gauge", "reward",
        "Reward of the newest evaluation on held-out prompts, likeliest tokens.",
        "step records of rank 0, with each checkpoint",
    ),
    job_metric(
        "tailwatch_job_loss", "gauge", "loss",
        "Loss of the newest job step, as rank 0 recorded it; it is a global loss.",
        "step records of rank 0",
    ),
    job_metric(
        "tailwatch_job_attempt_info", "info", "",
        "The current attempt and its configuration; always 1.", "step records",
        "attempt", "configuration",
    ),
    job_metric(
        "tailwatch_job_phase_seconds_total", "counter", "seconds",
        "Time of job steps by exclusive phase, mean over ranks; the phases add up to the step.",
        "step records", "phase",
    ),
    job_metric(
        "tailwatch_expert_load_max_ratio", "gauge", "ratio",
        "Tokens of the busiest expert over the mean of all experts, newest job step.",
        "tokens per expert in the step records",
    ),
]  # fmt: skip
