"""Whether the job did what the fault calls for: go on, restart, refuse, or shrink and grow.

Contract: one function a fault; each returns its checks and the restart that people read about in
the report. Steps lost are the steps that all ranks had finished and that the new attempt had to
compute again.
"""

from __future__ import annotations

import msgspec

from tailwatch.chaos.judge import restarts
from tailwatch.chaos.judge.case import Case
from tailwatch.records import Event
from tailwatch.runs import Attempt
from tailwatch.verdicts import Check, RestartOutcome


class Reaction(msgspec.Struct, kw_only=True):
    """The checks of the reaction, and the restart if there was one."""

    checks: list[Check]
    restart: RestartOutcome | None = None


def judge_reaction(case: Case) -> Reaction:
    """Return what the job did after the injection."""
    if case.running is None or case.injected_ns is None:
        detail = "Nothing was injected, or the attempt that ran is not on record."
        return Reaction(checks=[Check(name="reaction", passed=None, detail=detail)])
    fault = case.experiment.fault
    if fault == "rank-slow":
        return Reaction(checks=[_no_restart(case, case.running)])
    if fault == "rank-kill":
        return _restart(case, case.running, corrupt=None)
    if fault == "checkpoint-corrupt":
        corrupt = case.fact("target", "checkpoint_step")
        if not isinstance(corrupt, int):
            detail = "The timeline does not say which checkpoint was made corrupt."
            return Reaction(checks=[Check(name="reaction", passed=None, detail=detail)])
        reaction = _restart(case, case.running, corrupt=corrupt)
        reaction.checks[:0] = [_refused(case, corrupt), _quarantined(case)]
        return reaction
    return _shrink_and_grow(case, case.running, case.injected_ns)


def _no_restart(case: Case, running: Attempt) -> Check:
    name = "reaction: no restart"
    numbers = ", ".join(str(number) for number in case.later_numbers)
    if numbers:
        return Check(name=name, passed=False, detail=f"The job was restarted: attempt {numbers}.")
    steps = [s for s in case.steps_of(running.attempt) if s.start_ns >= (case.injected_ns or 0)]
    detail = f"Attempt {running.attempt} went on for {len(steps)} steps after the injection."
    return Check(name=name, passed=True if steps else None, detail=detail)


def _attempts(case: Case, running: Attempt, wanted: int) -> Check:
    """Whether exactly the next `wanted` numbers are new attempts, and each of them began."""
    ranks = {a.attempt: f"{a.attempt} with {a.world_size} ranks" for a in case.later_attempts}
    numbers = case.later_numbers
    words = ", ".join(ranks.get(n, f"{n}, which died before it began") for n in numbers) or "none"
    first = running.attempt + 1
    expected = list(range(first, first + wanted))
    named = " and ".join(str(number) for number in expected)
    return Check(
        name="reaction: attempts",
        passed=numbers == expected == sorted(ranks),
        detail=f"New attempts until the end of the experiment: {words}; expected was {named}.",
    )


def _restart(case: Case, running: Attempt, corrupt: int | None) -> Reaction:
    new = case.later_attempts
    checks = [_attempts(case, running, 1)]
    if not new:
        return Reaction(checks=checks)
    attempt = new[0]
    checks.append(_same_world(running, attempt))
    checks.append(restarts.in_time_check(case, attempt, case.injected_ns or 0, "injection"))
    verified = restarts.verified_steps(case, attempt)
    newest = max(verified, default=None)
    usable = verified if corrupt is None else verified - {corrupt}
    why = "the newest verified checkpoint"
    if corrupt is not None:
        why = "the newest verified checkpoint before the corrupt one"
    expected = max(usable, default=None)
    checks.append(restarts.resumes_check(case, attempt, expected, why))
    checks.append(restarts.losses_check(case, attempt))
    lost = _steps_lost(case, running.attempt, attempt)
    checks.append(_lost_check(case, attempt, lost, corrupt))
    restart = RestartOutcome(
        attempt=attempt.attempt,
        resumed_from_step=restarts.resumed_from(case, attempt),
        newest_verified_step=newest,
        steps_lost=lost,
    )
    return Reaction(checks=checks, restart=restart)


def _same_world(running: Attempt, attempt: Attempt) -> Check:
    detail = f"The new attempt has {attempt.world_size} ranks, the old one {running.world_size}."
    same = attempt.world_size == running.world_size
    return Check(name="reaction: world size", passed=same, detail=detail)


def _steps_lost(case: Case, old: int, attempt: Attempt) -> int | None:
    last, resumed = restarts.last_step(case, old), restarts.resumed_from(case, attempt)
    return None if last is None or resumed is None else max(0, last - resumed)


def _lost_check(case: Case, attempt: Attempt, lost: int | None, corrupt: int | None) -> Check:
    """Whether the steps lost can be told, and whether a refusal stated its share of them."""
    name = "reaction: steps lost"
    resumed = restarts.resumed_from(case, attempt)
    if lost is None or resumed is None:
        return Check(name=name, passed=None, detail="The steps lost cannot be told.")
    detail = f"{lost} finished steps had to be computed again"
    if corrupt is None:
        return Check(name=name, passed=True, detail=f"{detail}.")
    stated = [event.detail.get("steps_lost") for event in _refusals(case)]
    said = ", ".join(str(steps) for steps in stated) or "nothing"
    cost = corrupt - resumed
    detail += f"; the refusal cost {cost} of them, the job stated {said}."
    return Check(name=name, passed=bool(stated) and all(s == cost for s in stated), detail=detail)


def _refusals(case: Case) -> list[Event]:
    begin = case.at("injecting") or 0
    return [
        event
        for event in case.gathered.events
        if event.kind == "checkpoint_refused" and begin <= event.time_ns < case.end_ns
    ]


def _refused(case: Case, corrupt: int) -> Check:
    name = "reaction: checkpoint refused"
    events = _refusals(case)
    place = (case.fact("target", "file"), case.fact("target", "block"))
    if not events:
        return Check(name=name, passed=False, detail="No checkpoint was refused.")
    named = [(e.step, e.detail.get("file"), e.detail.get("block")) for e in events]
    words = "; ".join(f"step {s} file {f} block {b}" for s, f, b in named)
    detail = f"Refused: {words}; corrupt was step {corrupt} file {place[0]} block {place[1]}."
    return Check(name=name, passed=all(n == (corrupt, *place) for n in named), detail=detail)


def _quarantined(case: Case) -> Check:
    name = "reaction: quarantine"
    refusals = _refusals(case)
    places = [str(e.detail["quarantined_as"]) for e in refusals if e.detail.get("quarantined_as")]
    if places:
        return Check(name=name, passed=True, detail=f"It was set aside as {places[-1]}.")
    return Check(name=name, passed=False, detail="Nothing says that it was set aside.")


def _shrink_and_grow(case: Case, running: Attempt, injected_ns: int) -> Reaction:
    new = case.later_attempts
    checks = [_attempts(case, running, 2)]
    if len(new) < 2:
        return Reaction(checks=checks)
    small, full = new[0], new[-1]
    rest = sum(1 for process in running.ranks if process.node != case.node)
    gone = all(process.node != case.node for process in small.ranks)
    sizes = f"{running.world_size}, {small.world_size} and {full.world_size} ranks"
    shrank = small.world_size == rest and gone
    back = case.at("undoing") or case.at("undone") or 0
    grew = full.world_size == running.world_size and full.started_ns >= back
    checks += [
        _committed(case, running, small),
        Check(
            name="reaction: goes on without the node",
            passed=shrank,
            detail=f"The attempts before, during and after have {sizes}.",
        ),
        Check(
            name="reaction: whole again after the return",
            passed=grew,
            detail=f"The last attempt has {full.world_size} of {running.world_size} ranks.",
        ),
        restarts.in_time_check(case, small, injected_ns, "injection"),
        restarts.in_time_check(case, full, back, "return"),
    ]
    lost = 0
    for before, after in ((running, small), (small, full)):
        last = restarts.last_step(case, before.attempt)
        why = f"the last step of attempt {before.attempt}"
        checks.append(restarts.resumes_check(case, after, last, why))
        lost += _steps_lost(case, before.attempt, after) or 0
    restart = RestartOutcome(
        attempt=full.attempt,
        resumed_from_step=restarts.resumed_from(case, full),
        newest_verified_step=max(restarts.verified_steps(case, full), default=None),
        steps_lost=lost,
    )
    return Reaction(checks=checks, restart=restart)


def _committed(case: Case, running: Attempt, small: Attempt) -> Check:
    name = "reaction: checkpoint at the leave"
    last = restarts.last_step(case, running.attempt)
    begin = case.at("injecting") or 0
    steps = {
        event.step
        for event in case.gathered.events
        if event.kind == "checkpoint_committed" and begin <= event.time_ns <= small.started_ns
    }
    words = ", ".join(str(s) for s in sorted(steps, key=str)) or "none"
    detail = f"Committed at the leave: step {words}; the last step of the attempt was {last}."
    return Check(name=name, passed=None if last is None else last in steps, detail=detail)
