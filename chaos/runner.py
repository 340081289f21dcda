"""The runner: one experiment after the other, everything it does and sees written down first.

Contract: it injects only after the undo is durable in the ledger, never starts an experiment whose
baseline check failed, and undoes what it did whatever happens. It decides nothing about verdicts:
the judge reads what it wrote. Stops early when a part is lost (`lost`), when wall clock and
monotonic clock part (`clock_jump`), or when it is interrupted (`aborted`).

Cost: polls step logs and files five times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tailwatch.chaos.controls import Control, tie
from tailwatch.chaos.faults import FaultContext, make_fault
from tailwatch.chaos.faults.fault import Fault
from tailwatch.chaos.feed import StepFeed
from tailwatch.chaos.ledger import Ledger
from tailwatch.chaos.targets import JobTarget, Lost
from tailwatch.evidence import (
    EvidenceDirectory,
    Experiment,
    LedgerEntry,
    Observation,
    ObservationKind,
    Plan,
)
from tailwatch.files import append_line, write_durably
from tailwatch.processes import StartError

POLL_SECONDS = 0.2
CLOCK_JUMP_SECONDS = 1.0
HEARTBEAT_SECONDS = 5.0
# How long an undo may take to show, and how long the fault may take to show.
UNDO_SEEN_SECONDS = 30.0
INJECTION_SEEN_SECONDS = 30.0


class Clock(Protocol):
    """Wall and monotonic time in nanoseconds; injected, so that a jump can be tested."""

    def time_ns(self) -> int:
        """Wall time."""
        ...

    def monotonic_ns(self) -> int:
        """Monotonic time."""
        ...


class ClockJump(Exception):
    """Wall and monotonic time moved apart; times on this timeline cannot be compared."""


class NoBaseline(Exception):
    """The job never gave a baseline, or was not back on it before the next experiment."""


class Runner:
    """Runs one plan against one job.

    Args:
        progress: told in a sentence what is going on.
        deliveries: returns the names of alerts delivered as resolved or firing so far, to wait for
            resolved notifications; what counts is judged from the receiver's own log.
    """

    def __init__(
        self,
        plan: Plan,
        job: JobTarget,
        evidence: EvidenceDirectory,
        feed: StepFeed,
        *,
        firing: Callable[[], set[str]],
        progress: Callable[[str], None],
        control: Control | None = None,
        clock: Clock = time,
    ) -> None:
        self.plan = plan
        self.job = job
        self.evidence = evidence
        self.feed = feed
        self.ledger = Ledger(evidence.ledger)
        self._firing = firing
        self._progress = progress
        self._control = control
        self._clock = clock
        self._offset_ns = clock.time_ns() - clock.monotonic_ns()
        self._experiment: Experiment | None = None
        self._window: tuple[int, int, int, str] = (0, 0, 0, "")
        self._upper = 0.0
        self._undone_ns = 0
        self._said = 0.0

    def run(self, start: Callable[[], None]) -> None:
        """Call `start` to bring the job up, and run the plan; returns when it is over."""
        write_durably(
            self.evidence.plan, msgspec.json.format(msgspec.json.encode(self.plan), indent=2)
        )
        self.note("run_started", run=self.job.run.name, plan=self.plan.name)
        try:
            start()
            self._baseline()
            for experiment in self.plan.experiments:
                self._experiment = experiment
                recovered = self._run_experiment(experiment)
                self._experiment = None
                if not recovered and experiment is not self.plan.experiments[-1]:
                    raise NoBaseline(f"the job is not back on its baseline after {experiment.name}")
        except KeyboardInterrupt:
            self._undo_everything()
            self.note("aborted", reason="interrupted")
        except StartError as error:
            self._undo_everything()
            self.note("lost", what="start", reason=str(error))
        except Lost as lost:
            self._undo_everything()
            self.note("lost", what=lost.what, reason=lost.reason)
        except ClockJump as jump:
            self._undo_everything()
            self.note("clock_jump", seconds=jump.args[0])
        except NoBaseline as reason:
            self.note("baseline_not_met", reason=str(reason))
        except OSError as error:
            # Disk full, permission lost: without evidence there is no verdict.
            self._undo_everything()
            self.note("aborted", reason=f"cannot go on: {error}")
        self._experiment = None
        self.note("run_finished")

    def note(self, kind: ObservationKind, **data: Any) -> None:
        """Write one observation, durably."""
        observation = Observation(
            time_ns=self._clock.time_ns(),
            mono_ns=self._clock.monotonic_ns(),
            kind=kind,
            experiment=self._experiment.name if self._experiment else None,
            data=data,
        )
        append_line(self.evidence.timeline, msgspec.json.encode(observation) + b"\n", durable=True)

    def _wait(self, seconds: float, done: Callable[[], Any] = lambda: None) -> Any:
        """Poll until `done` returns something true; return that, or its last value at the end."""
        deadline = self._clock.monotonic_ns() + int(seconds * 1e9)
        while True:
            self.feed.poll()
            self.job.check()
            jump = (self._clock.time_ns() - self._clock.monotonic_ns() - self._offset_ns) / 1e9
            if abs(jump) > CLOCK_JUMP_SECONDS:
                raise ClockJump(jump)
            self._heartbeat()
            result = done()
            if result or self._clock.monotonic_ns() > deadline:
                return result
            time.sleep(POLL_SECONDS)

    def _heartbeat(self) -> None:
        if not self.feed.steps or time.monotonic() - self._said < HEARTBEAT_SECONDS:
            return
        self._said = time.monotonic()
        last = self.feed.steps[-1]
        reward = f", reward {last.reward:.3f}" if last.reward is not None else ""
        self._progress(
            f"  attempt {last.attempt}, step {last.step}, {last.world_size} ranks, "
            f"{last.duration_s * 1000:.0f} ms{reward}"
        )

    def _baseline(self) -> None:
        criteria = self.plan.criteria
        self._progress(f"waiting for a baseline of n_eff >= {criteria.n_eff} job steps")

        def found() -> dict[str, float] | None:
            usable = [step for step in self.feed.steps if step.comparable]
            return self.job.baseline(usable[-1].configuration) if usable else None

        baseline = self._wait(criteria.baseline_seconds, found)
        if baseline is None:
            raise NoBaseline(
                f"no p99 with n_eff >= {criteria.n_eff} within {criteria.baseline_seconds:g} s"
            )
        first, last = int(baseline["first_step"]), int(baseline["last_step"])
        inside = [s for s in self.feed.steps if s.comparable and first <= s.step <= last]
        attempt, configuration = inside[-1].attempt, inside[-1].configuration
        self._window = (attempt, first, last, configuration)
        self._upper = baseline["upper"]
        self.note(
            "baseline",
            attempt=attempt,
            first_step=first,
            last_step=last,
            configuration=configuration,
            n=int(baseline["n"]),
            n_eff=baseline["n_eff"],
            p99={key: baseline[key] for key in ("estimate", "lower", "upper")},
        )
        self._progress(
            f"baseline: p99 {baseline['estimate']:.3f} s (at most {baseline['upper']:.3f} s), "
            f"steps {first} to {last}, n_eff {baseline['n_eff']:.0f}"
        )

    def _run_experiment(self, experiment: Experiment) -> bool:
        attempt, first, last, _ = self._window
        window = [
            step
            for step in self.feed.steps
            if step.attempt == attempt and step.comparable and first <= step.step <= last
        ]
        context = FaultContext(experiment, self.job, self.feed, self.ledger, window)
        fault = make_fault(context)
        tie(fault, self._control)
        self._progress(f"{experiment.name}: {experiment.hypothesis}")
        self.note("experiment_started")
        try:
            target = fault.resolve()
        except StartError as error:
            raise Lost("target", str(error)) from None
        self.note("target", **target)
        undo, arguments = fault.undo_action()
        entry = self.ledger.open(experiment.name, undo, arguments)
        self.note("injecting", ledger=entry.id)
        self.note("injected", **fault.inject())
        self._hold(experiment, fault)
        recovered = self._undo(experiment, fault, entry) and self._recover(experiment)
        self.note("experiment_finished")
        return recovered

    def _hold(self, experiment: Experiment, fault: Fault) -> None:
        facts = self._wait(INJECTION_SEEN_SECONDS, fault.seen)
        if facts:
            self.note("injection_seen", seen=True, **facts)
            self._progress(f"{experiment.name}: fault is in force")
        else:
            self.note("injection_seen", seen=False)
            self._progress(f"{experiment.name}: fault could not be seen at the target")
            return
        if not self._wait(experiment.reaction_seconds, fault.reacted):
            self._progress(f"{experiment.name}: the job has not reacted as it must")
        if fault.holds:
            began = self._clock.monotonic_ns()
            expected = {alert.name for alert in experiment.expected}
            slowest = max(alert.deadline_seconds for alert in experiment.expected)
            self._wait(slowest, lambda: expected <= self._firing())
            rest = experiment.hold_seconds - (self._clock.monotonic_ns() - began) / 1e9
            if rest > 0:
                self._wait(rest)

    def _undo(self, experiment: Experiment, fault: Fault, entry: LedgerEntry) -> bool:
        self.note("undoing")
        mode = fault.undo(entry)
        self._undone_ns = self._clock.time_ns()
        self.note("undone", mode=mode)
        facts = self._wait(UNDO_SEEN_SECONDS, fault.undo_seen)
        self.note("undo_seen", **({"seen": True, **facts} if facts else {"seen": False}))
        if not facts:
            self._progress(f"{experiment.name}: the undo does not show")
            return False
        self._progress(f"{experiment.name}: undone, waiting for p99 to come back")
        return True

    def _recover(self, experiment: Experiment) -> bool:
        undone_ns = self._undone_ns
        criteria = self.plan.criteria
        configuration = self._window[3]

        def after() -> list[Any]:
            steps = [
                step
                for step in self.feed.since(undone_ns)
                if step.comparable and step.configuration == configuration
            ]
            return steps[: criteria.recovery_steps]

        self._wait(experiment.recovery_seconds, lambda: len(after()) >= criteria.recovery_steps)
        steps = after()
        over = sum(step.duration_s > self._upper for step in steps)
        seen = len(steps) == criteria.recovery_steps and over <= criteria.recovery_over
        first = steps[0].step if steps else None
        self.note("recovered", seen=seen, first_step=first, steps=len(steps), over=over)
        self._progress(
            f"{experiment.name}: {over} of {len(steps)} steps above the baseline's upper bound"
        )
        waiting = {a.name for a in experiment.expected if a.resolved_seconds is not None}
        patience = max((a.resolved_seconds or 0.0 for a in experiment.expected), default=0.0)
        spent = (self._clock.time_ns() - undone_ns) / 1e9
        self._wait(max(patience - spent, 1.0), lambda: not waiting & self._firing())
        # The next experiment's alerts must be its own: let the last ones of this one end.
        listed = {a.name for a in experiment.expected} | set(experiment.allowed)
        self._wait(30.0, lambda: not listed & self._firing())
        return seen

    def _undo_everything(self) -> None:
        for entry in self.ledger.left_open():
            self.ledger.undo(entry)
