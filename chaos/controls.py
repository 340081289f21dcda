"""Negative controls: what a game day does when its own hands are tied.

Contract: a control changes what happens, never what is written down; the evidence of a controlled
run has the same shape, and the judge has to find out by itself. Each control has one right verdict:
no-injection INCONCLUSIVE, rule-removed DEVIATED, undo-blocked UNDO_FAILED.
"""

from __future__ import annotations

from typing import Literal, get_args

from tailwatch.chaos.faults import Fault
from tailwatch.chaos.faults.fault import Facts, UndoMode
from tailwatch.errors import UsageError
from tailwatch.evidence import LedgerEntry

Control = Literal["no-injection", "rule-removed", "undo-blocked"]


def parse_control(text: str | None) -> Control | None:
    """Return the control of that name, None for none."""
    for known in get_args(Control):
        if text == known:
            return known  # type: ignore[no-any-return] # get_args returns Any
    if text is not None:
        names = ", ".join(get_args(Control))
        raise UsageError(f"is {text!r}, expected one of: {names}", source="--control")
    return None


def tie(fault: Fault, control: Control | None) -> None:
    """Tie the hands of one fault."""
    if control == "no-injection":
        fault.inject = _inject_nothing  # type: ignore[method-assign] # the point of a control
    elif control == "undo-blocked":
        fault.undo = _undo_nothing  # type: ignore[method-assign] # the point of a control


def _inject_nothing() -> Facts:
    return {}


def _undo_nothing(entry: LedgerEntry) -> UndoMode:
    return "done"
