"""Whether the fault really was at the target.

Contract: the runner's word is needed and is not enough; each fault must have left its traces in
records that the target did not write (or stopped writing). Anything but True for every check makes
the experiment INCONCLUSIVE: what was not injected proves nothing, good or bad.
"""

from __future__ import annotations

from tailwatch.chaos.judge.case import Baseline, Case, reported
from tailwatch.chaos.judge.waits import others_wait, own_wait, seconds_a_step
from tailwatch.evidence import FaultKind
from tailwatch.records import StepRecord
from tailwatch.verdicts import Check

KILLS: frozenset[FaultKind] = frozenset({"rank-kill", "checkpoint-corrupt"})
MIN_STEPS = 5


def injection_checks(case: Case) -> list[Check]:
    """Return the checks that together verify the injection."""
    if case.injected_ns is None:
        detail = "The timeline has no injected: nothing was done at the target."
        return [Check(name="injection", passed=None, detail=detail)]
    checks = [_ledger_first(case), reported(case, "injection_seen", "injection")]
    fault = case.experiment.fault
    if fault == "rank-slow":
        checks += _slowed(case)
    elif fault == "node-drain":
        checks.append(_node_gone(case))
    else:
        checks += _killed(case)
    if fault == "checkpoint-corrupt":
        checks.append(_bytes_changed(case))
    return checks


def _ledger_first(case: Case) -> Check:
    """Whether the way back was on record before anything was done."""
    name = "injection: ledger first"
    identity, injected = case.fact("injecting", "ledger"), case.injected_ns
    opened = [e for e in case.gathered.ledger if e.id == identity and e.state == "open"]
    if not opened or injected is None:
        detail = "The ledger has no open entry from before the injection."
        return Check(name=name, passed=None, detail=detail)
    seconds = (injected - opened[0].time_ns) / 1e9
    detail = f"The undo ({opened[0].undo}) was written down {seconds:.3f} s before the injection."
    return Check(name=name, passed=seconds >= 0, detail=detail)


def wait_rise(case: Case, baseline: Baseline, begin_ns: int, end_ns: int) -> float | None:
    """Return by how much the others' median wait lies above the baseline's in a window, seconds."""
    if case.rank is None:
        return None
    steps = case.steps_between(begin_ns, end_ns)
    now, before = others_wait(steps, case.rank), others_wait(baseline.steps, case.rank)
    if now is None or before is None or len(steps) < MIN_STEPS:
        return None
    return now - before


def _slowed(case: Case) -> list[Check]:
    names = ("injection: others waited", "injection: target did not wait", "injection: throughput")
    begin, end = case.injected_ns, case.at("undoing") or case.at("undone")
    baseline, rank, planned = case.baseline, case.rank, case.experiment.delay_seconds
    if begin is None or end is None or baseline is None or rank is None or planned is None:
        detail = "The timeline lacks the window, the target or the baseline."
        return [Check(name=name, passed=None, detail=detail) for name in names]
    rise = wait_rise(case, baseline, begin, end)
    steps = case.steps_between(begin, end)
    own_now, own_before = own_wait(steps, rank), own_wait(baseline.steps, rank)
    if rise is None or own_now is None or own_before is None:
        detail = f"{len(steps)} steps with a record of every rank in the window are too few."
        return [Check(name=name, passed=None, detail=detail) for name in names]
    own = own_now - own_before
    others = Check(
        name=names[0],
        passed=rise >= planned / 2,
        detail=f"The other ranks waited {rise:.4f} s a step longer than in the baseline; planned "
        f"was a delay of {planned:g} s.",
    )
    target = Check(
        name=names[1],
        passed=own < planned / 4,
        detail=f"Rank {rank} itself waited {own:+.4f} s a step against the baseline.",
    )
    return [others, target, _throughput(case, baseline, rank, planned, begin, end)]


def _throughput(
    case: Case, baseline: Baseline, rank: int, planned: float, begin: int, end: int
) -> Check:
    records = case.gathered.records
    now = seconds_a_step((r for r in records if begin <= r.start_ns <= end), rank)
    before = seconds_a_step((r for r in records if _in_baseline(r, baseline)), rank)
    name = "injection: throughput"
    if now is None or before is None:
        return Check(name=name, passed=None, detail="The other ranks have no step starts.")
    return Check(
        name=name,
        passed=now - before >= planned / 2,
        detail=f"By the other ranks' starts a step took {now:.4f} s, in the baseline "
        f"{before:.4f} s.",
    )


def _in_baseline(record: StepRecord, baseline: Baseline) -> bool:
    inside = baseline.first_step <= record.step <= baseline.last_step
    return inside and record.attempt == baseline.attempt


def _killed(case: Case) -> list[Check]:
    names = ("injection: process", "injection: rank silent", "injection: attempt ended")
    running, rank, injected = case.running, case.rank, case.injected_ns
    if running is None or rank is None or injected is None:
        detail = "The attempt or the target at the injection is not known."
        return [Check(name=name, passed=None, detail=detail) for name in names]
    mine = [r for r in case.gathered.records if (r.attempt, r.rank) == (running.attempt, rank)]
    after = [r.step for r in mine if r.start_ns + r.duration_ns > injected]
    silent = Check(
        name=names[1],
        passed=not after if mine else None,
        detail=f"Rank {rank} wrote {len(mine)} records in attempt {running.attempt}, "
        f"{len(after)} of them after the injection.",
    )
    # A step that had begun may still be written by the others; none can begin and be whole.
    late = [s.step for s in case.steps_of(running.attempt) if s.start_ns > injected]
    ended = Check(
        name=names[2],
        passed=not late if mine else None,
        detail=f"Attempt {running.attempt} finished {len(late)} steps begun after the injection.",
    )
    return [_process(case), silent, ended]


def _process(case: Case) -> Check:
    name = "injection: process"
    running = case.running
    homes = [p for p in running.ranks if p.rank == case.rank] if running else []
    pid = case.fact("injection_seen", "pid") or case.fact("target", "pid")
    ticks = case.fact("injection_seen", "start_ticks") or case.fact("target", "start_ticks")
    if not homes or pid is None:
        return Check(name=name, passed=None, detail="The killed process is not on record.")
    home = homes[0]
    same = pid == home.pid and ticks in (None, home.start_ticks)
    detail = (
        f"Killed was pid {pid} (start {ticks}); rank {home.rank} of the attempt was pid "
        f"{home.pid} (start {home.start_ticks}) on {home.node}."
    )
    return Check(name=name, passed=same and home.node == case.node, detail=detail)


def _bytes_changed(case: Case) -> Check:
    name = "injection: bytes changed"
    seen = {key: case.fact("injection_seen", key) for key in ("file", "block", "expected", "found")}
    if any(value is None for value in seen.values()):
        missing = ", ".join(key for key, value in seen.items() if value is None)
        return Check(name=name, passed=None, detail=f"The injection's facts lack {missing}.")
    place = (case.fact("target", "file"), case.fact("target", "block"))
    passed = seen["expected"] != seen["found"] and (seen["file"], seen["block"]) == place
    detail = (
        f"File {seen['file']} block {seen['block']}: digest {seen['found']} on disk, "
        f"{seen['expected']} in the manifest; target was file {place[0]} block {place[1]}."
    )
    return Check(name=name, passed=passed, detail=detail)


def _node_gone(case: Case) -> Check:
    name = "injection: node silent"
    running, node = case.running, case.node
    seen, back = case.at("injection_seen"), case.at("undoing") or case.at("undone")
    if running is None or node is None or seen is None or back is None:
        return Check(name=name, passed=None, detail="The node, its leave or its return is unknown.")
    mine = [r for r in case.gathered.records if r.node == node and r.start_ns < back]
    before = [r for r in mine if r.attempt == running.attempt and r.start_ns < seen]
    after = [r for r in mine if r.start_ns >= seen]
    return Check(
        name=name,
        passed=not after if before else None,
        detail=f"The ranks of {node} wrote {len(before)} records in attempt {running.attempt} and "
        f"{len(after)} between the leave and the return.",
    )
