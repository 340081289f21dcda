"""From checks to verdicts.

Contract, for one experiment, the first that applies: an undo that failed is UNDO_FAILED; one that
was broken off is ABORTED; evidence that cannot be relied on is INCONCLUSIVE; no baseline is
BASELINE_NOT_MET; an injection that is not verified is INCONCLUSIVE; an alert, reaction or recovery
that differs from the hypothesis is DEVIATED; an answer that is missing is INCONCLUSIVE; what is
left is PASSED. The whole game day is its worst experiment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tailwatch.chaos.judge.alerts import AlertFindings, judge_alerts
from tailwatch.chaos.judge.baseline import baseline_check, read_baseline
from tailwatch.chaos.judge.case import Case
from tailwatch.chaos.judge.conditions import condition_checks, jump_seconds, spoiled
from tailwatch.chaos.judge.gathered import Gathered, gather
from tailwatch.chaos.judge.injection import injection_checks
from tailwatch.chaos.judge.reaction import judge_reaction
from tailwatch.chaos.judge.recovery import Recovery, judge_recovery, windows
from tailwatch.chaos.judge.undo import judge_undo
from tailwatch.evidence import Experiment, Observation, ObservationKind, Plan
from tailwatch.verdicts import (
    SCHEMA,
    SEVERITY,
    Check,
    ExperimentOutcome,
    ReportDocument,
    Verdict,
    rfc3339,
    worst,
)


def judge(evidence: Path) -> ReportDocument:
    """Return what the game day in an evidence directory came to.

    Raises UsageError when the directory holds no evidence or its plan cannot be understood.
    """
    gathered = gather(evidence)
    plan, timeline = gathered.plan, gathered.timeline
    outcomes: list[ExperimentOutcome] = []
    if plan is not None:
        held: bool | None = True
        cases: list[Case] = []
        for experiment in plan.experiments:
            case = _case(gathered, experiment, list(cases))
            outcome, held = _judge_experiment(case, plan, held)
            outcomes.append(outcome)
            cases.append(case)
    verdict, reason = _overall(gathered, outcomes)
    baseline = read_baseline(gathered)
    finished = [o for o in timeline if o.kind in ("run_finished", "aborted")]
    return ReportDocument(
        schema=SCHEMA,
        run=gathered.run,
        plan=plan.name if plan else "",
        verdict=verdict,
        reason=reason,
        started_at=rfc3339(timeline[0].time_ns) if timeline else None,
        finished_at=rfc3339(finished[-1].time_ns) if finished else None,
        baseline=baseline.bounds if baseline else None,
        experiments=outcomes,
    )


def _case(gathered: Gathered, experiment: Experiment, earlier: list[Case]) -> Case:
    timeline = gathered.timeline
    mine = [o for o in timeline if o.experiment == experiment.name]
    moments: dict[ObservationKind, Observation] = {}
    for observation in mine:
        moments.setdefault(observation.kind, observation)
    last_ns = timeline[-1].time_ns if timeline else 0
    start_ns = mine[0].time_ns if mine else last_ns
    finished = moments.get("experiment_finished")
    before = [
        o.time_ns
        for o in timeline
        if o.kind == "experiment_finished" and o.experiment != experiment.name
    ]
    later = [
        o.time_ns
        for o in timeline
        if o.kind == "injecting" and o.experiment != experiment.name and o.time_ns > start_ns
    ]
    run_start = timeline[0].time_ns if timeline else 0
    return Case(
        experiment=experiment,
        gathered=gathered,
        earlier=earlier,
        moments=moments,
        begin_ns=max((t for t in before if t <= start_ns), default=run_start),
        end_ns=finished.time_ns if finished else last_ns,
        next_ns=min(later, default=sys.maxsize),
        baseline=read_baseline(gathered, moments["injecting"].time_ns)
        if "injecting" in moments
        else read_baseline(gathered),
    )


def _judge_experiment(
    case: Case, plan: Plan, held: bool | None
) -> tuple[ExperimentOutcome, bool | None]:
    """Judge one experiment; `held` says whether the one before it came back to the baseline."""
    conditions = condition_checks(case)
    base = [baseline_check(case.gathered, case.baseline, plan.criteria), _still(held)]
    injection = injection_checks(case)
    alerts = judge_alerts(case)
    reaction = judge_reaction(case)
    recovery = judge_recovery(case, plan.criteria)
    undo = judge_undo(case, plan.criteria.recovery_steps)
    hypothesis = [*alerts.checks, *reaction.checks, recovery.check]
    aborted = _broken_off(case)
    verdict: Verdict = "PASSED"
    reason = _success(alerts, recovery)
    if _first(undo.checks, False):
        verdict, reason = "UNDO_FAILED", _first(undo.checks, False)
    elif aborted:
        verdict, reason = aborted
    elif _first(conditions, None):
        verdict, reason = "INCONCLUSIVE", _first(conditions, None)
    elif _first(base, False):
        verdict, reason = "BASELINE_NOT_MET", _first(base, False)
    elif _first(base, None):
        verdict, reason = "INCONCLUSIVE", _first(base, None)
    elif unverified := _first(injection, False) or _first(injection, None):
        verdict, reason = "INCONCLUSIVE", unverified
    elif _first(hypothesis, False):
        deviations = [check.detail for check in hypothesis if check.passed is False]
        verdict, reason = "DEVIATED", " ".join(deviations)
    elif _first([*hypothesis, *undo.checks], None):
        verdict, reason = "INCONCLUSIVE", _first([*hypothesis, *undo.checks], None)
    injected, undone = case.injected_ns, case.at("undone")
    verified = all(check.passed for check in injection)
    outcome = ExperimentOutcome(
        name=case.experiment.name,
        fault=case.experiment.fault,
        hypothesis=case.experiment.hypothesis,
        target=_target(case),
        verdict=verdict,
        reason=reason,
        injected_at=None if injected is None else rfc3339(injected),
        undone_at=None if undone is None else rfc3339(undone),
        undo=undo.state,
        alerts=alerts.outcomes,
        detection_seconds=alerts.detection_seconds if verified else None,
        recovery_seconds=recovery.seconds if verified else None,
        restart=reaction.restart,
        p99=windows(case, recovery),
        checks=[*conditions, *base, *injection, *hypothesis, *undo.checks],
    )
    return outcome, recovery.check.passed


def _still(held: bool | None) -> Check:
    """A recovery window is the baseline check of the experiment that follows it."""
    name = "baseline: still holds"
    if held is False:
        detail = "The experiment before this one did not come back to the baseline."
    elif held is None:
        detail = "Nothing shows that the experiment before this one came back to the baseline."
    else:
        detail = "Whatever ran before this experiment came back to the baseline."
    return Check(name=name, passed=held, detail=detail)


def _broken_off(case: Case) -> tuple[Verdict, str] | None:
    """Return verdict and reason of an experiment that did not run to its end."""
    if "experiment_finished" in case.moments:
        return None
    started = "experiment_started" in case.moments or "injecting" in case.moments
    what = "was broken off" if started else "never ran"
    for observation in case.gathered.timeline:
        why = observation.data.get("reason", "no reason given")
        if observation.kind == "aborted":
            return "ABORTED", f"The experiment {what}: the game day was aborted ({why})."
        if observation.kind == "baseline_not_met" and not started:
            return "BASELINE_NOT_MET", f"The experiment {what}: {why}."
        if observation.kind == "lost":
            part = observation.data.get("what", "a part")
            return "INCONCLUSIVE", f"The experiment {what}: lost {part} ({why})."
        if observation.kind == "clock_jump":
            seconds = jump_seconds(observation)
            return "INCONCLUSIVE", f"The experiment {what}: the clock jumped by {seconds:+.1f} s."
    problems = case.gathered.problems
    why = f" ({'; '.join(problems)})" if problems else ""
    return "INCONCLUSIVE", f"The experiment {what}: the timeline does not hold its end{why}."


def _first(checks: list[Check], answer: bool | None) -> str:
    """Return the detail of the first check with this answer, or nothing."""
    return next((check.detail for check in checks if check.passed is answer), "")


def _success(alerts: AlertFindings, recovery: Recovery) -> str:
    seen = "The fault was there and is gone, the job reacted as expected"
    if alerts.detection_seconds is not None:
        seen += f", the alert came after {alerts.detection_seconds:.1f} s"
    if recovery.seconds is not None:
        seen += f", and p99 was back after {recovery.seconds:.1f} s"
    return f"{seen}."


def _target(case: Case) -> dict[str, str | int | None]:
    target: dict[str, str | int | None] = {"node": case.node, "rank": case.rank}
    frozen = case.moments.get("target")
    for name, value in sorted(frozen.data.items() if frozen else ()):
        if name not in target and isinstance(value, str | int):
            target[name] = value
    return target


def _overall(gathered: Gathered, outcomes: list[ExperimentOutcome]) -> tuple[Verdict, str]:
    """Return the verdict of the whole game day and a sentence that names what decided it."""
    verdict = worst([outcome.verdict for outcome in outcomes])
    aborted = [o for o in gathered.timeline if o.kind == "aborted"]
    if aborted and SEVERITY.index("ABORTED") < SEVERITY.index(verdict):
        why = aborted[0].data.get("reason", "no reason given")
        return "ABORTED", f"The game day was aborted: {why}."
    if verdict == "PASSED" or not outcomes:
        why = spoiled(gathered)
        if why or not outcomes:
            return "INCONCLUSIVE", why or "The plan has no experiment."
        return "PASSED", f"All {len(outcomes)} experiments passed."
    decisive = next(outcome for outcome in outcomes if outcome.verdict == verdict)
    return verdict, f"{decisive.name}: {decisive.reason}"
