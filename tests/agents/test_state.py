"""What the job agent knows: baselines that freeze, counters that are right, state that survives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.agents import Samples, parse
from support.ranks import RUN, event, step_record
from tailwatch.agents.job import baseline
from tailwatch.agents.job.agent import JobAgent
from tailwatch.agents.job.baseline import BaselineSearch
from tailwatch.agents.job.metrics import JobMetrics
from tailwatch.agents.job.pull import Frames
from tailwatch.agents.job.state import load_state
from tailwatch.records import Record, encode
from tailwatch.statistics import N_EFF_FOR_P99, quantile_bounds
from tailwatch.steplog import frame

NODES = ["node-0", "node-1"]


class Job:
    """A job agent without sockets: records go straight into it, as frames of two logs."""

    def __init__(self, root: Path) -> None:
        self.path = root / "run-1.job.json"
        self.logs: dict[str, bytes] = dict.fromkeys(NODES, b"")
        self.restart()

    def restart(self) -> None:
        """Start the agent anew on the state it saved last."""
        self.agent = JobAgent(self.path, RUN, "grpo", NODES)

    def write(self, node: str, record: Record) -> None:
        """Append a record to a node's log."""
        self.logs[node] += frame(encode(record))

    def pull(self) -> None:
        """Give the agent what is new in the logs."""
        for node, data in self.logs.items():
            cursor = self.agent.cursor(node)
            if len(data) > cursor:
                self.agent.take(Frames(node, cursor, data[cursor:]))
        self.agent.tick()

    def step(self, step: int, *, world_size: int = 4, **changes: Any) -> None:
        """Write one whole job step and pull it; a value may be a list with one entry a rank."""
        for rank in range(world_size):
            own = {k: v[rank] if isinstance(v, list) else v for k, v in changes.items()}
            record = step_record(rank, step, world_size=world_size, **own)
            self.write(record.node, record)
        self.pull()

    def steps(self, first: int, last: int, **changes: Any) -> None:
        """Write job steps `first` to `last`; their durations vary a little."""
        for step in range(first, last + 1):
            self.step(step, **{"duration_ns": 100_000_000 + step * 7919 % 10_007 * 1000, **changes})

    @property
    def samples(self) -> Samples:
        """The samples of the exposition."""
        return parse(JobMetrics(4).render(self.agent.state))

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with at least these labels; None without any."""
        wanted = set(labels.items())
        found = [v for (n, ls), v in self.samples.items() if n == name and wanted <= ls]
        return sum(found) if found else None


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job agent that has seen nothing."""
    return Job(tmp_path)


def test_counters_are_born_at_zero(job: Job) -> None:
    """Before the first record the job's counters are 0, and what is not known is absent."""
    for name in (
        "tailwatch_job_restarts_total",
        "tailwatch_checkpoint_refused_total",
        "tailwatch_job_steps_judged_total",
        "tailwatch_job_steps_over_baseline_total",
        "tailwatch_job_steps_total",
        "tailwatch_job_lateness_steps_total",
        "tailwatch_job_step_seconds_count",
        "tailwatch_job_baseline_known",
    ):
        assert job.value(name) == 0, name
    assert job.value("tailwatch_job_expected_world_size") == 4
    for name in (
        "tailwatch_job_world_size",
        "tailwatch_job_loss",
        "tailwatch_job_step_p99_seconds",
    ):
        assert job.value(name) is None, name


def test_rank_counter_is_born_with_its_first_record(job: Job) -> None:
    """A rank's lateness is there at 0 as soon as the rank is seen, before a step is whole."""
    job.write("node-0", step_record(1, 1))
    job.pull()
    late = "tailwatch_rank_late_seconds_total"
    assert job.value(late, node="node-0", rank="1", workload="grpo", run=RUN) == 0
    assert job.value(late, rank="0") is None


def test_late_rank_is_the_one_that_waits_least(job: Job) -> None:
    """A rank for which the others wait 50 ms a step is late by 50 ms a step, the others by 0."""
    waits = [{"ep": 60_000_000, "dp": 1}] * 4
    waits[2] = {"ep": 10_000_000}
    for step in range(1, 11):
        job.step(step, waits_ns=waits)
    late = "tailwatch_rank_late_seconds_total"
    assert job.value(late, node="node-1", rank="2") == pytest.approx(0.5)
    assert job.value(late) == pytest.approx(0.5)


def test_late_seconds_by_their_steps_are_those_of_a_step(job: Job) -> None:
    """Warm-up steps and steps without waits are in neither the late seconds nor their steps."""
    waits = [{"ep": 50_000_000}, {"ep": 0}, {"ep": 50_000_000}, {"ep": 50_000_000}]
    for step in range(1, 11):
        job.step(step, waits_ns=waits, warmup=step <= 3)
    for step in range(11, 14):
        job.step(step, waits_ns={})
    late = job.value("tailwatch_rank_late_seconds_total", rank="1") or 0.0
    steps = job.value("tailwatch_job_lateness_steps_total")
    assert (steps, job.value("tailwatch_job_steps_total")) == (7, 13)
    assert late / 7 == pytest.approx(0.05)


def test_warmup_is_neither_late_nor_compared(job: Job) -> None:
    """Warm-up steps count as steps, but in no lateness, window or baseline."""
    waits = [{"ep": 10**9}, {"ep": 0}, {"ep": 10**9}, {"ep": 10**9}]
    job.step(1, warmup=True, waits_ns=waits)
    assert job.value("tailwatch_rank_late_seconds_total") == 0
    assert job.value("tailwatch_job_lateness_steps_total") == 0
    assert job.value("tailwatch_job_steps_total", stage="grpo") == 1
    assert job.value("tailwatch_job_step_p50_seconds") is None


def test_supervised_steps_are_not_compared(job: Job) -> None:
    """Steps of stage sft are counted and may be late, but belong to no baseline."""
    job.steps(1, 400, stage="sft")
    assert job.value("tailwatch_job_steps_total", stage="sft") == 400
    assert job.value("tailwatch_job_baseline_known") == 0
    assert job.value("tailwatch_job_step_n_eff") is None


def test_baseline_freezes_once_it_says_enough(job: Job) -> None:
    """The first window with n_eff >= 299 becomes the baseline and never moves afterwards."""
    job.steps(1, N_EFF_FOR_P99 - 1)
    assert job.value("tailwatch_job_baseline_known") == 0
    job.steps(N_EFF_FOR_P99, 400)
    assert job.value("tailwatch_job_baseline_known") == 1
    (frozen,) = job.agent.state.baselines.values()
    assert frozen.first_step == 1
    assert frozen.n_eff >= N_EFF_FOR_P99
    seconds = [0.1 + s * 7919 % 10_007 / 1e6 for s in range(1, frozen.last_step + 1)]
    expected = quantile_bounds(seconds)
    assert (frozen.p99, frozen.upper) == pytest.approx((expected.estimate, expected.upper))
    job.steps(401, 600, duration_ns=900_000_000)
    assert list(job.agent.state.baselines.values()) == [frozen]
    p99 = "tailwatch_job_baseline_p99_seconds"
    assert job.value(p99, configuration="grpo-ep4") == pytest.approx(frozen.p99)


def test_steps_are_judged_only_after_the_baseline(job: Job) -> None:
    """Judged are the steps behind the baseline, over are those above its upper bound."""
    job.steps(1, 500)
    (frozen,) = job.agent.state.baselines.values()
    judged = job.value("tailwatch_job_steps_judged_total")
    assert judged == 500 - frozen.last_step
    over = job.value("tailwatch_job_steps_over_baseline_total") or 0
    job.steps(501, 510, duration_ns=300_000_000)
    job.steps(511, 513, duration_ns=1_000_000)
    assert job.value("tailwatch_job_steps_judged_total") == judged + 13
    assert job.value("tailwatch_job_steps_over_baseline_total") == over + 10


def test_dependent_steps_need_a_longer_baseline() -> None:
    """Steps that come slow in long runs do not make a baseline at 299, but later."""
    rng = np.random.default_rng(1)
    search = BaselineSearch(configuration="c")
    found, step, slow, level = None, 0, 0, 0.0
    while found is None:
        step += 1
        if slow == 0 and rng.random() < 0.02:
            slow, level = 8, 0.1 + rng.random()
        slow = max(slow - 1, 0)
        seconds = level + 0.001 * slow if slow else 0.1 + 0.01 * rng.random()
        found = search.add(1, step, seconds)
        assert step < 5000
    assert found.steps > 2 * N_EFF_FOR_P99
    assert found.n_eff >= N_EFF_FOR_P99


def test_baseline_window_is_consecutive() -> None:
    """A gap or a new attempt begins the window anew."""
    for gap in ((1, 301), (2, 300)):
        search = BaselineSearch(configuration="c")
        for step in range(1, 290):
            assert search.add(1, step, 0.1 + step * 1e-5) is None
        search.add(*gap, 0.1)
        assert search.seconds == [0.1]


def test_baseline_is_found_even_in_a_full_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that had to drop its oldest steps still looks again and again."""
    monkeypatch.setattr(baseline, "MAX_STEPS", 500)
    search = BaselineSearch(configuration="c")
    assert not any(search.add(1, step, float(step)) for step in range(1, 1000))
    found = [search.add(1, step, 1000 + step % 7) for step in range(1000, 1600)]
    assert any(found)


def test_each_configuration_has_its_own_baseline(job: Job) -> None:
    """Another world size is another configuration: unknown at first, and known again on return."""
    job.steps(1, 400)
    job.steps(401, 420, attempt=2, world_size=2, configuration="grpo-ep2")
    assert job.value("tailwatch_job_baseline_known") == 0
    assert job.value("tailwatch_job_world_size") == 2
    assert job.value("tailwatch_job_step_n_eff") == pytest.approx(20)
    judged = job.value("tailwatch_job_steps_judged_total") or 0
    job.steps(421, 430, attempt=3)
    assert job.value("tailwatch_job_baseline_known") == 1
    assert job.value("tailwatch_job_world_size") == 4
    assert job.value("tailwatch_job_steps_judged_total") == judged + 10


def test_gone_ranks_have_no_series(job: Job) -> None:
    """Ranks that are not in the current attempt leave the exposition, and keep their counter."""
    waits = [{"ep": 0}, {"ep": 10**9}, {"ep": 10**9}, {"ep": 10**9}]
    job.step(1, waits_ns=waits)
    job.step(2, attempt=2, world_size=2, configuration="grpo-ep2")
    late = "tailwatch_rank_late_seconds_total"
    assert {dict(ls)["rank"] for (n, ls) in job.samples if n == late} == {"0", "1"}
    job.step(3, attempt=3)
    assert job.value(late, rank="0") == pytest.approx(1.0)


def test_restarts_are_attempts_behind_the_first(job: Job) -> None:
    """Each higher attempt is a restart, an attempt that never made a step included."""
    job.step(1, attempt=3)
    assert job.value("tailwatch_job_restarts_total") == 0
    job.step(2, attempt=5)
    assert job.value("tailwatch_job_restarts_total") == 2
    job.step(3, attempt=4)
    assert job.value("tailwatch_job_restarts_total") == 2
    assert job.value("tailwatch_job_attempt_info", attempt="5", configuration="grpo-ep4") == 1


def test_events_of_checkpoints(job: Job) -> None:
    """A refused checkpoint counts once however many ranks tell of it; the verified one is named."""
    for rank in (0, 1):
        job.write("node-0", event("checkpoint_refused", step=40, rank=rank))
    job.write("node-0", event("checkpoint_verified", step=30, time_ns=1_790_000_000_500_000_000))
    job.pull()
    assert job.value("tailwatch_checkpoint_refused_total") == 1
    assert job.value("tailwatch_checkpoint_last_verified_step") == 30
    stamp = job.value("tailwatch_checkpoint_last_verified_timestamp_seconds")
    assert stamp == 1_790_000_000.5


def test_finished_job_does_not_look_stuck(job: Job) -> None:
    """After the finish of its newest attempt a job has no last-step time to grow old."""
    job.step(1)
    assert job.value("tailwatch_job_last_step_timestamp_seconds") == 1_790_000_000.2
    job.write("node-0", event("finish"))
    job.pull()
    assert job.value("tailwatch_job_last_step_timestamp_seconds") is None


def test_iterations_have_their_own_quantiles(job: Job) -> None:
    """An iteration is as long as its steps together; one that was not seen whole does not count."""
    for step in range(1, 12):
        job.step(step, iteration=(step + 1) // 3, duration_ns=100_000_000)
    (window,) = (w.iterations for w in job.agent.state.windows.values())
    assert window == pytest.approx([0.3, 0.3, 0.3])
    assert job.value("tailwatch_job_iteration_p99_seconds") == pytest.approx(0.3)


def test_other_runs_are_not_ours(job: Job) -> None:
    """Records of another run in the same logs are passed over."""
    job.step(1, run="run-2")
    assert job.value("tailwatch_job_steps_total") == 0
    assert job.value("tailwatch_job_world_size") is None


@pytest.mark.parametrize("save_at", [0, 3, 10, 399])
def test_restart_counts_everything_once(tmp_path: Path, save_at: int) -> None:
    """Killed after any save, the agent comes back to the same exposition as without the kill."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, broken = Job(tmp_path / "a"), Job(tmp_path / "b")
    for job in (whole, broken):
        for step in range(1, 421):
            for rank in (3, 1, 0, 2):
                record = step_record(
                    rank, step, duration_ns=10**8 + (step * 31 + rank) % 97 * 10**5,
                    waits_ns={"ep": (step * 7 + rank * 3) % 11 * 10**6},
                )  # fmt: skip
                job.write(record.node, record)
                if rank == 0:
                    job.pull()
                    if job is broken and step == save_at:
                        job.agent.save()
            if step == 5:
                job.write("node-0", event("checkpoint_refused", step=4))
            if job is broken and step == min(save_at + 15, 420):
                job.restart()
        job.pull()
    assert broken.samples == pytest.approx(whole.samples)
    assert broken.value("tailwatch_job_steps_total") == 420
    assert broken.agent.state.baselines == whole.agent.state.baselines


def test_log_begun_anew_repeats_no_step(job: Job) -> None:
    """When a node's log starts over, steps that were counted are not counted again."""
    job.steps(1, 5)
    data = job.logs["node-0"]
    job.agent.take(Frames("node-0", 0, data))
    job.agent.take(Frames("node-1", 0, job.logs["node-1"]))
    assert job.value("tailwatch_job_steps_total") == 5


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"no json", b'{"version":9,"run":"x","workload":"y"}']
)
def test_unreadable_state_is_read_again_from_the_logs(job: Job, content: bytes) -> None:
    """A state file that is damaged or of another run costs a new reading and nothing else."""
    job.steps(1, 5)
    job.path.write_bytes(content)
    job.restart()
    job.pull()
    assert job.value("tailwatch_job_steps_total") == 5


def test_state_that_cannot_be_saved_stops_nothing(job: Job) -> None:
    """Without a place for its state the agent goes on, and says so once."""
    job.path = job.agent._path = Path("/proc/nowhere/state.json")
    job.steps(1, 3)
    job.agent.save()
    assert job.value("tailwatch_job_steps_total") == 3


def test_state_is_of_one_run(job: Job) -> None:
    """A saved state is only used for its own run and workload."""
    job.steps(1, 5)
    job.agent.save()
    assert load_state(job.path, RUN, "grpo").steps["grpo"] == 5
    assert load_state(job.path, RUN, "other").steps["grpo"] == 0
