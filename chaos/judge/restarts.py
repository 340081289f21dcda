"""What a new attempt started from, and what it had to do again.

Contract: from the attempts, the job's events and the ranks' records alone. Losses are compared bit
by bit: a step computed again at equal world size gives the same loss to the last digit.
"""

from __future__ import annotations

import struct

from tailwatch.chaos.judge.case import Case
from tailwatch.runs import Attempt
from tailwatch.verdicts import Check


def resumed_from(case: Case, attempt: Attempt) -> int | None:
    """Return the step an attempt says it resumed from, by its claim or its restore event."""
    if attempt.resumed_from_step is not None:
        return attempt.resumed_from_step
    return restored_step(case, attempt)


def restored_step(case: Case, attempt: Attempt) -> int | None:
    """Return the step of the attempt's restore event."""
    steps = [
        event.step
        for event in case.gathered.events
        if event.kind == "restore" and event.attempt == attempt.attempt
    ]
    return steps[-1] if steps else None


def verified_steps(case: Case, before: Attempt) -> set[int]:
    """Return the steps whose checkpoints stood verified, and not refused, before an attempt.

    A refused step that was computed and verified again stands again. One that was committed, but
    whose verification the fault cut short, stands if the attempt itself verified and restored it.
    """
    standing: set[int] = set()
    committed: set[int] = set()
    for event in case.gathered.events:
        if event.step is None or event.attempt > before.attempt:
            continue
        if event.attempt == before.attempt:
            own = event.kind == "restore" and event.detail.get("verified") is True
            if own and event.step in committed:
                standing.add(event.step)
            continue
        if event.kind == "checkpoint_committed":
            committed.add(event.step)
        if event.kind == "checkpoint_verified" and event.time_ns <= before.started_ns:
            standing.add(event.step)
        elif event.kind == "checkpoint_refused":
            standing.discard(event.step)
    return standing


def last_step(case: Case, attempt: int) -> int | None:
    """Return the last step that all ranks of an attempt finished."""
    steps = [step.step for step in case.steps_of(attempt)]
    return max(steps) if steps else None


def first_step(case: Case, attempt: int) -> int | None:
    """Return the first step of an attempt that all its ranks finished."""
    steps = [step.step for step in case.steps_of(attempt)]
    return min(steps) if steps else None


def resumes_check(case: Case, attempt: Attempt, expected: int | None, why: str) -> Check:
    """Whether an attempt resumed from the expected step: claim, event and first record agree."""
    name = f"reaction: attempt {attempt.attempt} resumes"
    claim, event = attempt.resumed_from_step, restored_step(case, attempt)
    first = first_step(case, attempt.attempt)
    if expected is None or first is None:
        detail = f"Attempt {attempt.attempt} finished no step."
        if expected is None:
            detail = f"The evidence does not say which step is {why}."
        return Check(name=name, passed=None, detail=detail)
    said = [step for step in (claim, event) if step is not None]
    passed: bool | None = all(step == expected for step in said) and first == expected + 1
    if len(said) < 2:
        # Neither claim nor event: it began from nothing. Only one of them: it cannot be told.
        passed = None if said and passed else False
    words = "nothing" if not said else " and ".join(f"step {s}" for s in sorted(set(said)))
    lacking = "" if len(said) != 1 else " (by its claim or its restore event alone)"
    detail = (
        f"Attempt {attempt.attempt} resumed from {words}{lacking} and began with step {first}; "
        f"{why} is step {expected}."
    )
    return Check(name=name, passed=passed, detail=detail)


def losses_check(case: Case, attempt: Attempt) -> Check:
    """Whether the steps an attempt computed again have the losses they had before."""
    name = f"reaction: attempt {attempt.attempt} repeats losses"
    records = case.gathered.records
    before = {
        (r.step, r.rank): r.loss
        for r in sorted(records, key=lambda r: r.attempt)
        if r.attempt < attempt.attempt and r.world_size == attempt.world_size
    }
    again = [r for r in records if r.attempt == attempt.attempt and (r.step, r.rank) in before]
    if not again:
        return Check(name=name, passed=True, detail="No step was computed twice.")
    differing = set()
    compared = set()
    for record in again:
        old = before[(record.step, record.rank)]
        if old is None or record.loss is None:
            continue
        compared.add(record.step)
        if struct.pack("<d", old) != struct.pack("<d", record.loss):
            differing.add(record.step)
    if differing:
        detail = f"{len(differing)} of {len(compared)} steps computed again have another loss, "
        return Check(name=name, passed=False, detail=f"{detail}the first is {min(differing)}.")
    if not compared:
        return Check(name=name, passed=None, detail="No record of a repeated step has a loss.")
    detail = f"{len(compared)} steps computed again have the same losses to the last bit."
    return Check(name=name, passed=True, detail=detail)


def in_time_check(case: Case, attempt: Attempt, since_ns: int, since: str) -> Check:
    """Whether an attempt finished its first step within the plan's reaction time."""
    name = f"reaction: attempt {attempt.attempt} in time"
    steps = case.steps_of(attempt.attempt)
    limit = case.experiment.reaction_seconds
    if not steps:
        detail = f"Attempt {attempt.attempt} finished no step."
        return Check(name=name, passed=None, detail=detail)
    seconds = (steps[0].end_ns - since_ns) / 1e9
    detail = (
        f"Attempt {attempt.attempt} finished its first step {seconds:.1f} s after the {since}, "
        f"the deadline is {limit:g} s."
    )
    return Check(name=name, passed=seconds <= limit, detail=detail)
