"""The runner: one experiment after the other, everything it does and sees written down.

Contract: it injects only after the undo is durable in the ledger, never starts an experiment whose
baseline check failed, and undoes what it did whatever happens; whoever calls it lets only the first
interrupt through. It decides nothing about verdicts: the judge reads what it wrote. Stops early
when a part is lost (`lost`), when wall clock and monotonic clock part (`clock_jump`), or when it is
interrupted or fails (`aborted`).

Cost: polls step logs and files five times a second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from tailwatch.chaos.controls import Control, tie
from tailwatch.chaos.faults import FaultContext, make_fault
from tailwatch.chaos.faults.fault import Fault
from tailwatch.chaos.feed import StepFeed
from tailwatch.chaos.ledger import Ledger, undo_left_open
from tailwatch.chaos.targets import JobTarget, Lost
from tailwatch.chaos.timeline import Timeline
from tailwatch.errors import UsageError
from tailwatch.evidence import EvidenceDirectory, Experiment, LedgerEntry, ObservationKind, Plan
from tailwatch.files import write_durably
from tailwatch.jobsteps import JobStep
from tailwatch.processes import StartError

POLL_SECONDS = 0.2
HEARTBEAT_SECONDS = 5.0
CLOCK_JUMP_SECONDS = 1.0
# How long a target may take to be ready, the fault to show, and its undo to show.
READY_SECONDS = 60.0
INJECTION_SEEN_SECONDS = 30.0
UNDO_SEEN_SECONDS = 30.0
QUIET_SECONDS = 30.0


class ClockJump(Exception):
    """Wall and monotonic time moved apart; times on this timeline cannot be compared."""


class NoBaseline(Exception):
    """The job never gave a baseline, or was not back on it before the next experiment."""


class AlertView(Protocol):
    """What has come in at the receiver, by name; the judge reads the receiver's own log."""

    def firing(self) -> set[str]:
        """Alerts whose last notification was firing."""
        ...

    def delivered(self, since_ns: int) -> set[str]:
        """Alerts delivered as firing since a wall time."""
        ...


class Runner:
    """Runs one plan against one job.

    Args:
        progress: told in a sentence what is going on.
    """

    def __init__(
        self,
        plan: Plan,
        job: JobTarget,
        evidence: EvidenceDirectory,
        feed: StepFeed,
        *,
        alerts: AlertView,
        progress: Callable[[str], None],
        control: Control | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.plan = plan
        self.job = job
        self.evidence = evidence
        self.feed = feed
        self.ledger = Ledger(evidence.ledger)
        self.timeline = timeline or Timeline(evidence.timeline)
        self._alerts = alerts
        self._progress = progress
        self._control = control
        self._window: list[JobStep] = []
        self._upper = 0.0
        self._said = 0.0

    def run(self, start: Callable[[], None]) -> None:
        """Call `start` to bring the job up, and run the plan; returns when it is over.

        An error that nobody foresaw is raised again, after everything has been undone.
        """
        ending: tuple[ObservationKind, dict[str, Any]] | None = None
        unforeseen: Exception | None = None
        try:
            self._run(start)
        except KeyboardInterrupt:
            ending = "aborted", {"reason": "interrupted"}
        except (StartError, UsageError) as error:
            ending = "lost", {"what": "start", "reason": str(error)}
        except Lost as lost:
            ending = "lost", {"what": lost.what, "reason": lost.reason}
        except ClockJump as jump:
            ending = "clock_jump", {"seconds": jump.args[0]}
        except NoBaseline as reason:
            ending = "baseline_not_met", {"reason": str(reason)}
        except OSError as error:
            # Disk full, permission lost: without evidence there is no verdict.
            ending = "aborted", {"reason": f"cannot go on: {error}"}
        except Exception as error:
            ending = "aborted", {"reason": f"failed: {type(error).__name__}: {error}"}
            unforeseen = error
        self._end(ending)
        if unforeseen is not None:
            raise unforeseen

    def _run(self, start: Callable[[], None]) -> None:
        plan = msgspec.json.format(msgspec.json.encode(self.plan), indent=2)
        write_durably(self.evidence.plan, plan)
        self.timeline.note("run_started", run=self.job.run.name, plan=self.plan.name)
        start()
        self._baseline()
        for experiment in self.plan.experiments:
            self.timeline.experiment = experiment.name
            recovered = self._run_experiment(experiment)
            self.timeline.experiment = None
            if not recovered and experiment is not self.plan.experiments[-1]:
                raise NoBaseline(f"the job is not back on its baseline after {experiment.name}")

    def _end(self, ending: tuple[ObservationKind, dict[str, Any]] | None) -> None:
        """Undo what is open unless the plan ran to its end, and write down how it ended."""
        if ending is not None:
            self._progress(
                f"{ending[0].replace('_', ' ')}: {', '.join(map(str, ending[1].values()))}"
            )
            undo_left_open(self.ledger)
        # On a full disk these lines are missing, and the judge sees a run without an end.
        with contextlib.suppress(OSError):
            if ending is not None:
                self.timeline.note(ending[0], **ending[1])
            self.timeline.experiment = None
            self.timeline.note("run_finished")

    def _wait(self, seconds: float, done: Callable[[], Any] = lambda: None) -> Any:
        """Poll until `done` returns something true; return that, or its last value at the end."""
        deadline = self.timeline.monotonic() + seconds
        while True:
            self.feed.poll()
            self.job.check()
            jump = self.timeline.jump_seconds()
            if abs(jump) > CLOCK_JUMP_SECONDS:
                raise ClockJump(jump)
            self._heartbeat()
            result = done()
            if result or self.timeline.monotonic() > deadline:
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
        attempt = inside[-1].attempt
        self._window = [step for step in inside if step.attempt == attempt]
        self._upper = baseline["upper"]
        self.timeline.note(
            "baseline",
            attempt=attempt,
            first_step=first,
            last_step=last,
            configuration=inside[-1].configuration,
            n=int(baseline["n"]),
            n_eff=baseline["n_eff"],
            p99={key: baseline[key] for key in ("estimate", "lower", "upper")},
        )
        self._progress(
            f"baseline: p99 {baseline['estimate']:.3f} s (at most {baseline['upper']:.3f} s), "
            f"steps {first} to {last}, n_eff {baseline['n_eff']:.0f}"
        )

    def _run_experiment(self, experiment: Experiment) -> bool:
        context = FaultContext(experiment, self.job, self.feed, self.ledger, self._window)
        fault = make_fault(context)
        tie(fault, self._control)
        self._progress(f"{experiment.name}: {experiment.hypothesis}")
        self.timeline.note("experiment_started")
        if not self._wait(READY_SECONDS, fault.ready):
            raise Lost("target", f"not ready for {experiment.fault} within {READY_SECONDS:g} s")
        self.timeline.note("target", **fault.resolve())
        entry = self.ledger.open(experiment.name, *fault.undo_action())
        self.timeline.note("injecting", ledger=entry.id)
        injected_ns = self.timeline.note("injected", **fault.inject())
        self._hold(experiment, fault, injected_ns)
        undone_ns = self._undo(experiment, fault, entry)
        recovered = undone_ns is not None and self._recover(experiment, undone_ns)
        self.timeline.note("experiment_finished")
        return recovered

    def _hold(self, experiment: Experiment, fault: Fault, injected_ns: int) -> None:
        facts = self._wait(INJECTION_SEEN_SECONDS, fault.seen)
        self.timeline.note("injection_seen", seen=bool(facts), **(facts or {}))
        if not facts:
            self._progress(f"{experiment.name}: the fault cannot be seen at the target")
            return
        self._progress(f"{experiment.name}: the fault is in force")
        began = self.timeline.monotonic()
        if not self._wait(experiment.reaction_seconds, fault.reacted):
            self._progress(f"{experiment.name}: the job has not reacted as it must")
        if fault.holds:
            expected = {alert.name for alert in experiment.expected}
            slowest = max(alert.deadline_seconds for alert in experiment.expected)
            self._wait(slowest, lambda: expected <= self._alerts.delivered(injected_ns))
            self._wait(experiment.hold_seconds - (self.timeline.monotonic() - began))

    def _undo(self, experiment: Experiment, fault: Fault, entry: LedgerEntry) -> int | None:
        """Undo the fault; return the wall time, or None when the undo does not show."""
        self.timeline.note("undoing")
        mode = fault.undo(entry)
        undone_ns = self.timeline.note("undone", mode=mode)
        facts = self._wait(UNDO_SEEN_SECONDS, fault.undo_seen)
        self.timeline.note("undo_seen", seen=bool(facts), **(facts or {}))
        if not facts:
            self._progress(f"{experiment.name}: the undo does not show")
            return None
        self._progress(f"{experiment.name}: undone, waiting for p99 to come back")
        return undone_ns

    def _recover(self, experiment: Experiment, undone_ns: int) -> bool:
        criteria = self.plan.criteria
        configuration = self._window[-1].configuration

        def after() -> list[JobStep]:
            steps = self.feed.since(undone_ns)
            mine = [s for s in steps if s.comparable and s.configuration == configuration]
            return mine[: criteria.recovery_steps]

        self._wait(experiment.recovery_seconds, lambda: len(after()) >= criteria.recovery_steps)
        steps = after()
        over = sum(step.duration_s > self._upper for step in steps)
        seen = len(steps) == criteria.recovery_steps and over <= criteria.recovery_over
        first = steps[0].step if steps else None
        self.timeline.note("recovered", seen=seen, first_step=first, steps=len(steps), over=over)
        self._progress(
            f"{experiment.name}: {over} of {len(steps)} steps above the baseline's upper bound"
        )
        # Resolved notifications belong to this experiment, and the next one's alerts to itself.
        listed = {alert.name for alert in experiment.expected} | set(experiment.allowed)
        patience = max((a.resolved_seconds or 0.0 for a in experiment.expected), default=0.0)
        self._wait(max(patience, QUIET_SECONDS), lambda: not listed & self._alerts.firing())
        return seen
