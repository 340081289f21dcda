"""Finds what a dead game day left behind, and undoes it: faults, processes, scratch.

Contract: a run whose driver is alive is left alone. Everything is idempotent: a second call finds
nothing. Used by people (`tailwatch gameday doctor`) and by the guard when a driver was killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tailwatch.chaos.ledger import Ledger, damaged_lines, undo_left_open
from tailwatch.demo.driver import read_driver
from tailwatch.errors import UsageError
from tailwatch.evidence import EvidenceDirectory
from tailwatch.processes import find_by_token, kill_for_sure, remove_scratch

RUNS = Path("runs")


class Treatment(msgspec.Struct, kw_only=True):
    """What was found in one run and what became of it."""

    run: str
    alive: bool
    undone: list[str]
    failed: list[str]
    processes_ended: int
    scratch_removed: list[str]

    @property
    def findings(self) -> int:
        """How many things were left."""
        return (
            len(self.undone) + len(self.failed) + self.processes_ended + len(self.scratch_removed)
        )


def run_doctor(root: Path | None, json_output: bool) -> int:
    """Treat `root`, or each run below it; 0 when nothing is left, 5 when something is."""
    treatments = [treat(run) for run in _runs(root if root is not None else RUNS, root is None)]
    if json_output:
        sys.stdout.buffer.write(msgspec.json.encode({"runs": treatments}) + b"\n")
    else:
        for treatment in treatments:
            _print(treatment)
        if not any(treatment.findings for treatment in treatments):
            print(f"nothing was left ({len(treatments)} runs looked at)")
    return 5 if any(treatment.failed for treatment in treatments) else 0


def treat(run: Path) -> Treatment:
    """Undo what is left of one run."""
    treatment = Treatment(
        run=str(run), alive=False, undone=[], failed=[], processes_ended=0, scratch_removed=[]
    )
    try:
        driver = read_driver(run)
    except UsageError as error:
        treatment.failed.append(str(error))
        driver = None
    if driver is not None and driver.alive:
        treatment.alive = True
        return treatment
    ledger = Ledger(EvidenceDirectory(run / "evidence").ledger)
    damaged = damaged_lines(ledger.path)
    if damaged:
        treatment.failed.append(f"{ledger.path}: {damaged} unreadable lines")
    for settled in undo_left_open(ledger):
        line = f"{settled.experiment}: {settled.undo}: {settled.reason}"
        (treatment.undone if settled.state == "undone" else treatment.failed).append(line)
    if driver is None:
        return treatment
    treatment.processes_ended = len(find_by_token(driver.token))
    for pid in kill_for_sure(driver.token):
        treatment.failed.append(f"process {pid} does not end")
    for path in map(Path, driver.scratch):
        if path.exists():
            reason = remove_scratch(path, driver.token)
            (treatment.failed if reason else treatment.scratch_removed).append(reason or str(path))
    return treatment


def _runs(root: Path, default: bool) -> list[Path]:
    if not root.is_dir():
        if default:
            return []
        raise UsageError("no such directory, expected a run or a directory of runs", source=root)
    if (root / "evidence").is_dir():
        return [root]
    return sorted(path for path in root.iterdir() if (path / "evidence").is_dir())


def _print(treatment: Treatment) -> None:
    if treatment.alive:
        print(f"{treatment.run}: its driver is alive, left alone")
    for line in treatment.undone:
        print(f"{treatment.run}: undone: {line}")
    if treatment.processes_ended:
        print(f"{treatment.run}: ended {treatment.processes_ended} processes")
    for line in treatment.scratch_removed:
        print(f"{treatment.run}: removed {line}")
    for line in treatment.failed:
        print(f"{treatment.run}: COULD NOT UNDO: {line}")
