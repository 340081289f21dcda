"""The exposition of a `JobState`.

Contract: what is not known is absent; the job's counters never are. Quantiles are those of
`tailwatch.statistics`, over the newest comparable steps of the current configuration.

Cost: one sort of at most 4,096 durations a quantile, only when there are new ones.
"""

from __future__ import annotations

from tailwatch.agents.job.baseline import Baseline
from tailwatch.agents.job.state import JobState, Window
from tailwatch.exposition import Snapshot
from tailwatch.statistics import quantile_bounds
from tailwatch.verdicts import Quantile

_EMPTY = Window()
_QUANTILES = (50, 95, 99)


class JobMetrics:
    """Renders a state; keeps the quantiles of a window that has not changed."""

    def __init__(self, expected_world_size: int) -> None:
        self._expected = expected_world_size
        self._key: tuple[str | None, int, int] | None = None
        self._steps: dict[int, Quantile] = {}
        self._iterations: dict[int, Quantile] = {}

    def render(self, state: JobState) -> bytes:
        """Return the exposition."""
        snapshot = Snapshot()
        labels = {"run": state.run, "workload": state.workload}
        self._add_counters(snapshot, state, labels)
        self._add_now(snapshot, state, labels)
        self._add_quantiles(snapshot, state, labels)
        for baseline in state.baselines.values():
            _add_baseline(snapshot, baseline, labels)
        return snapshot.render()

    def _add_counters(self, snapshot: Snapshot, state: JobState, labels: dict[str, str]) -> None:
        for stage, count in state.steps.items():
            snapshot.add("tailwatch_job_steps_total", count, **labels, stage=stage)
        snapshot.add_histogram(
            "tailwatch_job_step_seconds", state.histogram, state.histogram_seconds, **labels
        )
        snapshot.add("tailwatch_job_lateness_steps_total", state.lateness_steps, **labels)
        snapshot.add("tailwatch_job_steps_judged_total", state.judged, **labels)
        snapshot.add("tailwatch_job_steps_over_baseline_total", state.over, **labels)
        snapshot.add("tailwatch_job_restarts_total", state.restarts, **labels)
        snapshot.add("tailwatch_checkpoint_refused_total", state.refused, **labels)
        state.checkpoints.add(snapshot, labels)
        state.resumed.add(snapshot, labels)
        for phase, seconds in state.phases.items():
            snapshot.add("tailwatch_job_phase_seconds_total", seconds, **labels, phase=phase)
        # Ranks that have gone are left out: their standing counters would pull medians to zero.
        for node, rank in sorted(state.present):
            late = state.late[node][rank]
            snapshot.add("tailwatch_rank_late_seconds_total", late, **labels, node=node, rank=rank)

    def _add_now(self, snapshot: Snapshot, state: JobState, labels: dict[str, str]) -> None:
        finished = state.finished_attempt is not None and state.finished_attempt == state.attempt
        last_step = None if finished else _seconds(state.last_step_end_ns)
        for name, value in (
            ("tailwatch_job_expected_world_size", self._expected),
            ("tailwatch_job_world_size", state.world_size),
            ("tailwatch_job_baseline_known", int(state.configuration in state.baselines)),
            ("tailwatch_job_last_step_timestamp_seconds", last_step),
            ("tailwatch_job_loss", state.loss),
            ("tailwatch_job_reward", state.reward),
            ("tailwatch_job_eval_reward", state.eval_reward),
            ("tailwatch_expert_load_max_ratio", state.expert_load_max_ratio),
            ("tailwatch_checkpoint_last_verified_step", state.verified_step),
            (
                "tailwatch_checkpoint_last_verified_timestamp_seconds",
                _seconds(state.verified_ns),
            ),
        ):
            snapshot.add(name, value, **labels)
        if state.attempt is not None and state.configuration is not None:
            snapshot.add(
                "tailwatch_job_attempt_info",
                1,
                **labels,
                attempt=state.attempt,
                configuration=state.configuration,
            )

    def _add_quantiles(self, snapshot: Snapshot, state: JobState, labels: dict[str, str]) -> None:
        window = state.windows.get(state.configuration or "", _EMPTY)
        key = (state.configuration, sum(state.steps.values()), len(window.iterations))
        if key != self._key:
            self._key = key
            self._steps = {q: quantile_bounds(window.steps, q / 100) for q in _QUANTILES}
            self._iterations = {q: quantile_bounds(window.iterations, q / 100) for q in _QUANTILES}
        for q in _QUANTILES:
            step, iteration = self._steps[q].estimate, self._iterations[q].estimate
            snapshot.add(f"tailwatch_job_step_p{q}_seconds", step, **labels)
            snapshot.add(f"tailwatch_job_iteration_p{q}_seconds", iteration, **labels)
        p99 = self._steps[99]
        snapshot.add("tailwatch_job_step_p99_lower_seconds", p99.lower, **labels)
        snapshot.add("tailwatch_job_step_p99_upper_seconds", p99.upper, **labels)
        snapshot.add("tailwatch_job_step_n_eff", p99.n_eff if p99.n else None, **labels)


def _add_baseline(snapshot: Snapshot, baseline: Baseline, labels: dict[str, str]) -> None:
    for suffix, value in (
        ("p99_seconds", baseline.p99),
        ("p99_lower_seconds", baseline.lower),
        ("p99_upper_seconds", baseline.upper),
        ("n_eff", baseline.n_eff),
        ("steps", baseline.steps),
        ("first_step", baseline.first_step),
        ("last_step", baseline.last_step),
    ):
        snapshot.add(
            f"tailwatch_job_baseline_{suffix}",
            value,
            **labels,
            configuration=baseline.configuration,
        )


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
