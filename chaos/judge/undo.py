"""Whether the fault is gone.

Contract: the ledger's last word on each entry counts first, then what the runner saw at the target,
then, for a slow rank, the waits of the other ranks after the undo. False is UNDO_FAILED; an undo
that cannot be told is no pass.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tailwatch.chaos.judge.case import Case, reported
from tailwatch.chaos.judge.injection import MIN_STEPS, wait_rise
from tailwatch.verdicts import Check

UndoState = Literal["none", "done", "failed"]


class Undo(msgspec.Struct, kw_only=True):
    """What became of the fault."""

    state: UndoState
    checks: list[Check]


def judge_undo(case: Case, recovery_steps: int) -> Undo:
    """Return whether everything that was injected is undone."""
    touched = case.at("injecting") is not None or case.injected_ns is not None
    entries = {e.id: e for e in case.gathered.ledger if e.experiment == case.experiment.name}
    if not touched and not entries:
        detail = "Nothing was injected, nothing is left."
        return Undo(state="none", checks=[Check(name="undo", passed=True, detail=detail)])
    none = case.fact("undone", "mode") == "none"
    checks = []
    if entries:
        left = [e for e in entries.values() if e.state != "undone"]
        words = "; ".join(f"{e.id} is {e.state} {e.reason}".strip() for e in left)
        detail = f"Left in the ledger: {words}." if left else "Every ledger entry is undone."
        checks.append(Check(name="undo: ledger", passed=not left, detail=detail))
    elif not none:
        detail = "The ledger has no entry of this experiment."
        checks.append(Check(name="undo: ledger", passed=None, detail=detail))
    if case.at("undone") is None:
        detail = "The timeline has no undone."
        checks.append(Check(name="undo: done", passed=None, detail=detail))
    elif case.experiment.fault != "rank-kill":
        # A killed process needs no undo; whether the job came back is the reaction's question.
        checks.append(reported(case, "undo_seen", "undo"))
    if case.experiment.fault == "rank-slow":
        checks.append(_waits_fell(case, recovery_steps))
    if any(check.passed is False for check in checks):
        return Undo(state="failed", checks=checks)
    known = bool(entries) or case.at("undone") is not None
    return Undo(state="done" if known and not none else "none", checks=checks)


def _waits_fell(case: Case, recovery_steps: int) -> Check:
    name = "undo: others stopped waiting"
    undone, baseline, planned = case.at("undone"), case.baseline, case.experiment.delay_seconds
    if undone is None or baseline is None or planned is None:
        return Check(name=name, passed=None, detail="There is no undo or no baseline.")
    steps = case.steps_between(undone, case.next_ns)[:recovery_steps]
    rise = wait_rise(case, baseline, undone, steps[-1].end_ns) if len(steps) >= MIN_STEPS else None
    if rise is None:
        detail = f"Only {len(steps)} comparable steps after the undo."
        return Check(name=name, passed=None, detail=detail)
    detail = f"After the undo the other ranks wait {rise:+.4f} s a step against the baseline."
    return Check(name=name, passed=rise < planned / 2, detail=detail)
