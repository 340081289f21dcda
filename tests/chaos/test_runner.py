"""The runner writes down what it does before it does it, and never passes over trouble."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.evidence_job import Job, configuration
from tailwatch import control
from tailwatch.chaos import runner as module
from tailwatch.chaos.faults import Fault, RankSlow, make_fault
from tailwatch.chaos.feed import StepFeed
from tailwatch.chaos.judge import judge
from tailwatch.chaos.ledger import Ledger
from tailwatch.chaos.plan import DEMO_PLAN, load_plan, select
from tailwatch.chaos.runner import Runner
from tailwatch.chaos.targets import Lost
from tailwatch.chaos.timeline import Timeline
from tailwatch.evidence import EvidenceDirectory, Observation
from tailwatch.processes import StartError
from tailwatch.records import encode
from tailwatch.runs import RunDirectory
from tailwatch.steplog import frame


@dataclasses.dataclass
class FakeJob:
    """A job that has trained some steps and then stands still; `trouble` is raised by `check`."""

    run: RunDirectory
    trouble: BaseException | None = None

    def node_running(self, node: str) -> bool:
        return True

    def start_node(self, node: str) -> None:
        return

    def check(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def baseline(self, wanted: str) -> dict[str, float] | None:
        return {
            "first_step": 60.0, "last_step": 380.0, "n": 321.0, "n_eff": 321.0,
            "estimate": 0.2, "lower": 0.1, "upper": 1e9,
        }  # fmt: skip


class NoAlerts:
    """A receiver that nothing ever reached."""

    def firing(self) -> set[str]:
        return set()

    def delivered(self, since_ns: int) -> set[str]:
        return set()


class JumpingClock:
    """Real clocks, until the wall clock is told to jump."""

    def __init__(self) -> None:
        self.jump_ns = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.jump_ns

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


Setup = Callable[..., tuple[Runner, FakeJob, EvidenceDirectory]]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """Make a runner of one experiment of the demo plan against a job of 400 made-up steps."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "INJECTION_SEEN_SECONDS", 0.3)
    monkeypatch.setattr(module, "UNDO_SEEN_SECONDS", 0.3)

    def make(only: str = "rank-slow", **options: Any) -> tuple[Runner, FakeJob, EvidenceDirectory]:
        run = RunDirectory.create(tmp_path / "run", {})
        job = Job(0)
        job.start()
        job.run_steps(400)
        for node in ("node-0", "node-1"):
            data = b"".join(frame(encode(r)) for r in job.records if r.node == node)
            (run.steps / f"{node}.steplog").write_bytes(data)
        for attempt in job.attempts:
            path = run.attempts / f"{attempt.attempt:04d}.json"
            path.write_bytes(msgspec.json.encode(attempt))
        target = FakeJob(run)
        evidence = EvidenceDirectory(run.evidence)
        feed = StepFeed(sorted(run.steps.iterdir()))
        clock = options.pop("clock", time)
        runner = Runner(
            select(load_plan(DEMO_PLAN), only), target, evidence, feed,
            alerts=NoAlerts(), progress=lambda text: None,
            timeline=Timeline(evidence.timeline, clock), **options,
        )  # fmt: skip
        return runner, target, evidence

    return make


def _timeline(evidence: EvidenceDirectory) -> list[Observation]:
    lines = evidence.timeline.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Observation) for line in lines]


def _kinds(evidence: EvidenceDirectory) -> list[str]:
    return [observation.kind for observation in _timeline(evidence)]


def test_the_undo_is_in_the_ledger_before_the_injection(setup: Setup) -> None:
    """At the moment of the injection the ledger on disk says how to undo it."""
    runner, _, evidence = setup()
    states: list[str] = []
    real_make = make_fault

    def spying(context: Any) -> Any:
        fault = real_make(context)
        real = fault.inject

        def injecting() -> Any:
            states.extend(e.state for e in Ledger(evidence.ledger).left_open())
            return real()

        fault.inject = injecting  # type: ignore[method-assign] # a spy
        return fault

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make_fault", spying)
        runner.run(lambda: None)
    assert states == ["open"]
    kinds = _kinds(evidence)
    assert kinds.index("injecting") < kinds.index("injected") < kinds.index("undoing")


def test_a_fault_nobody_sees_is_written_down_as_not_seen(setup: Setup) -> None:
    """A job without a trace of the fault gives `seen: false`, and the judge does not pass it."""
    runner, _, evidence = setup()
    runner.run(lambda: None)
    seen = [o.data["seen"] for o in _timeline(evidence) if o.kind == "injection_seen"]
    assert seen == [False]
    assert judge(evidence.root).verdict != "PASSED"


def test_a_lost_part_ends_the_game_day_with_everything_undone(setup: Setup) -> None:
    """Prometheus gone in the middle: noted by name, ledger closed, verdict INCONCLUSIVE."""
    runner, job, evidence = setup()
    real = runner.ledger.open

    def opening(*arguments: Any) -> Any:
        job.trouble = Lost("prometheus", "ended")
        return real(*arguments)

    runner.ledger.open = opening  # type: ignore[assignment,method-assign] # strikes right after
    runner.run(lambda: None)
    lost = [o.data for o in _timeline(evidence) if o.kind == "lost"]
    assert lost == [{"what": "prometheus", "reason": "ended"}]
    assert Ledger(evidence.ledger).left_open() == []
    assert judge(evidence.root).verdict == "INCONCLUSIVE"


def test_an_interrupt_undoes_and_aborts(setup: Setup) -> None:
    """Ctrl-C in the middle of a fault closes the ledger and gives ABORTED."""
    runner, job, evidence = setup()
    real = runner.ledger.open

    def opening(*arguments: Any) -> Any:
        job.trouble = KeyboardInterrupt()
        return real(*arguments)

    runner.ledger.open = opening  # type: ignore[assignment,method-assign] # strikes right after
    runner.run(lambda: None)
    assert "aborted" in _kinds(evidence)
    assert Ledger(evidence.ledger).left_open() == []
    assert judge(evidence.root).verdict == "ABORTED"


def test_a_clock_that_jumps_is_noticed_and_never_passes(setup: Setup) -> None:
    """Wall time that leaves monotonic time by more than a second ends the game day."""
    clock = JumpingClock()
    runner, _, evidence = setup(clock=clock)

    def jump() -> None:
        clock.jump_ns = 3_600_000_000_000

    runner.run(jump)
    assert [round(o.data["seconds"]) for o in _timeline(evidence) if o.kind == "clock_jump"] == [
        3600
    ]
    assert judge(evidence.root).verdict != "PASSED"


def test_a_start_that_fails_is_said_with_its_part(setup: Setup) -> None:
    """When a part does not come up the timeline names it, and the verdict is no pass."""
    runner, _, evidence = setup()

    def fail() -> None:
        raise StartError("prometheus ended (exit status 1)")

    runner.run(fail)
    [lost] = [o.data for o in _timeline(evidence) if o.kind == "lost"]
    assert "prometheus ended" in lost["reason"]
    assert judge(evidence.root).verdict == "INCONCLUSIVE"


def test_a_full_disk_aborts_with_a_clear_reason(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC at the ledger means nothing is injected, and the reason is written down."""
    runner, _, evidence = setup()
    injected: list[int] = []

    def full(*arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    runner.ledger.open = full  # type: ignore[assignment,method-assign] # the disk is full
    monkeypatch.setattr(Fault, "undo", lambda *a: injected.append(1))
    runner.run(lambda: None)
    aborted = [o.data["reason"] for o in _timeline(evidence) if o.kind == "aborted"]
    assert len(aborted) == 1
    assert "No space left" in aborted[0]
    assert "injected" not in _kinds(evidence)
    assert judge(evidence.root).verdict == "ABORTED"


def test_configurations_of_the_made_up_job_are_what_the_runner_compares() -> None:
    """The made-up job and the runner speak of the same configuration."""
    assert configuration(4) != configuration(2)


def test_a_disk_that_fills_up_at_any_line_still_undoes_everything(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever line of the timeline cannot be written, no fault stands afterwards."""
    runner, job, evidence = setup()
    lines = [0]
    real = runner.timeline.note

    def filling(kind: Any, **data: Any) -> int:
        lines[0] += 1
        if lines[0] > 4:  # run_started, baseline, experiment_started, target fit
            raise OSError(28, "No space left on device")
        return real(kind, **data)

    monkeypatch.setattr(runner.timeline, "note", filling)
    runner.run(lambda: None)
    assert lines[0] > 5
    assert Ledger(evidence.ledger).left_open() == []
    assert control.standing_faults(job.run.orders, time.time_ns()) == []
    assert judge(evidence.root).verdict != "PASSED"


def test_an_error_nobody_foresaw_is_raised_after_the_undo(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in a fault keeps its traceback, but neither its fault nor an open ledger."""
    runner, job, evidence = setup()
    monkeypatch.setattr(RankSlow, "seen", lambda self: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        runner.run(lambda: None)
    assert Ledger(evidence.ledger).left_open() == []
    assert control.standing_faults(job.run.orders, time.time_ns()) == []
    assert judge(evidence.root).verdict == "ABORTED"
