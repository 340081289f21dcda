"""Evidence of a whole game day that never took place, and tools to edit it.

Contract: `build_evidence` writes a complete and consistent evidence directory that is judged
PASSED; the same arguments give the same bytes. Tests take it, change one fact, and look whether
the verdict changes as it must. Cost: about half a second for all four faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.evidence_job import NODES, RUN, SECOND, Job, checkpoint_name, configuration
from support.evidence_plan import ALL_FAULTS, plan_for
from support.evidence_scribe import Scribe, write_evidence
from tailwatch.evidence import Experiment, FaultKind, Observation
from tailwatch.statistics import quantile_bounds


def build_evidence(
    root: Path,
    *,
    faults: Sequence[FaultKind] = ALL_FAULTS,
    seed: int = 0,
    baseline_steps: int = 330,
    delay_seconds: float = 0.1,
    recovery_steps: int = 150,
    drag_after_undo: float = 0.0,
    undo_works: bool = True,
    inject: bool = True,
) -> Path:
    """Write the evidence of a game day with `faults` into `root` and return it.

    Args:
        root: a directory that is made when it does not exist.
        faults: the experiments, in order; each is named after its fault.
        seed: of all noise.
        baseline_steps: job steps in the baseline window.
        delay_seconds: delay of the slow rank a step.
        recovery_steps: job steps run after each undo.
        drag_after_undo: seconds by which every step after the first undo is longer.
        undo_works: whether the slow rank is fast again after the undo.
        inject: whether the slow rank is slowed at all.
    """
    job = Job(seed)
    plan = plan_for(faults, delay_seconds)
    scribe = Scribe(job, plan)
    scribe.see("run_started", run=RUN, plan=plan.name)
    job.pause(6.0)
    job.start()
    job.run_steps(50)
    _baseline(scribe, baseline_steps)
    for experiment in plan.experiments:
        scribe.see("experiment_started", experiment)
        if experiment.fault == "rank-slow":
            _rank_slow(scribe, experiment, inject, undo_works)
        elif experiment.fault == "rank-kill":
            _rank_kill(scribe, experiment)
        elif experiment.fault == "checkpoint-corrupt":
            _checkpoint_corrupt(scribe, experiment)
        else:
            _node_drain(scribe, experiment)
        job.drag = drag_after_undo
        first = job.step + 1
        job.run_steps(recovery_steps + 4)
        scribe.see("recovered", experiment, seen=True, first_step=first, steps=150, over=1)
        scribe.see("experiment_finished", experiment)
        job.run_steps(8)
    job.pause(0.5)
    job.event("finish", step=job.step)
    scribe.see("run_finished")
    write_evidence(root, scribe)
    return root


def _baseline(scribe: Scribe, steps: int) -> None:
    job = scribe.job
    first = job.step + 1
    job.run_steps(steps)
    by_step: dict[int, int] = {}
    for record in job.records:
        if first <= record.step <= job.step:
            by_step[record.step] = max(by_step.get(record.step, 0), record.duration_ns)
    p99 = quantile_bounds([by_step[s] / 1e9 for s in sorted(by_step)])
    scribe.see(
        "baseline",
        first_step=first,
        last_step=job.step,
        attempt=job.attempt.attempt,
        configuration=configuration(job.attempt.world_size),
        n=p99.n,
        n_eff=p99.n_eff,
        p99={"estimate": p99.estimate, "lower": p99.lower, "upper": p99.upper},
    )


def _target(scribe: Scribe, experiment: Experiment, **more: Any) -> dict[str, Any]:
    attempt = scribe.job.attempt
    rank = experiment.target.rank
    data: dict[str, Any] = {"node": experiment.target.node, "attempt": attempt.attempt}
    if rank is not None:
        process = attempt.ranks[rank]
        data |= {"rank": rank, "pid": process.pid, "start_ticks": process.start_ticks}
    data |= more
    scribe.see("target", experiment, **data)
    return data


def _rank_slow(scribe: Scribe, experiment: Experiment, inject: bool, undo_works: bool) -> None:
    job, delay = scribe.job, experiment.delay_seconds or 0.0
    target = _target(scribe, experiment)
    order = f"{job.now_ns:020d}-00feed"
    ledger = scribe.note(experiment, "clear-order", "open", order=order)
    scribe.see("injecting", experiment, ledger=ledger)
    injected = scribe.see("injected", experiment, order=order, delay_seconds=delay)
    job.event("chaos_injected", source="chaos", rank=target["rank"], node=target["node"])
    if inject:
        job.delay = (target["rank"], delay)
    job.run_seconds(4.0)
    scribe.see("injection_seen", experiment, seen=inject, others_wait_rise_seconds=delay * inject)
    job.run_seconds(experiment.hold_seconds - 4.0)
    scribe.see("undoing", experiment)
    if undo_works:
        job.delay = None
    scribe.note(experiment, "clear-order", "undone", order=order)
    undone = scribe.see("undone", experiment, mode="done")
    job.event("chaos_undone", source="chaos", rank=target["rank"], node=target["node"])
    if inject:
        place = {"node": str(target["node"]), "rank": str(target["rank"])}
        at, over = injected.time_ns, undone.time_ns
        scribe.alert("RankStraggler", at + 3 * SECOND, over + 4 * SECOND, place)
        scribe.alert("StepTimeP99High", at + 5 * SECOND, over + 6 * SECOND)
    job.run_seconds(1.0)
    scribe.see("undo_seen", experiment, seen=undo_works, others_wait_rise_seconds=0.001)


def _kill(scribe: Scribe, experiment: Experiment, target: dict[str, Any]) -> Observation:
    injected = scribe.see("injected", experiment, signal="SIGKILL", pid=target["pid"])
    job = scribe.job
    source = f"launcher/{target['node']}"
    job.pause(0.2)
    job.event("failure", source, rank=target["rank"], node=target["node"], detail={"signal": 9})
    return injected


def _rank_kill(scribe: Scribe, experiment: Experiment) -> None:
    job = scribe.job
    job.run_steps(7)
    target = _target(scribe, experiment)
    ledger = scribe.note(experiment, "none", "open", pid=target["pid"])
    scribe.see("injecting", experiment, ledger=ledger)
    injected = _kill(scribe, experiment, target)
    gone = {"pid": target["pid"], "start_ticks": target["start_ticks"], "gone": True}
    scribe.see("injection_seen", experiment, seen=True, **gone)
    job.pause(2.2)
    job.start(resume_from=_newest(job))
    scribe.see("undoing", experiment)
    scribe.note(experiment, "none", "undone", pid=target["pid"])
    scribe.see("undone", experiment, mode="none")
    scribe.see("undo_seen", experiment, seen=True)
    scribe.alert("JobRestarted", injected.time_ns + 4 * SECOND, injected.time_ns + 11 * SECOND)


def _checkpoint_corrupt(scribe: Scribe, experiment: Experiment) -> None:
    job = scribe.job
    job.run_steps(5)
    newest = _newest(job)
    older = _newest(job, before=newest)
    name = checkpoint_name(newest)
    place: dict[str, Any] = {"checkpoint": name, "file": "__2_0.distcp", "block": 3}
    target = _target(scribe, experiment, checkpoint_step=newest, offset=3 * 65536 + 17, **place)
    ledger = scribe.note(experiment, "restore-byte", "open", **place, offset=3 * 65536 + 17)
    scribe.see("injecting", experiment, ledger=ledger)
    injected = _kill(scribe, experiment, target)
    digests = {"expected": "9f" * 16, "found": "3c" * 16}
    gone = {"pid": target["pid"], "start_ticks": target["start_ticks"], "gone": True}
    scribe.see("injection_seen", experiment, seen=True, **place, **digests, **gone)
    job.pause(2.0)
    job.start(resume_from=older)
    place["reason"] = f"block 3 of {place['file']} is changed"
    moved = f"{checkpoint_name(newest)}.bad-changed"
    refused = {**place, "fault": "changed", "problems": 1, "quarantined_as": moved}
    refused["steps_lost"] = newest - older
    job.event("checkpoint_refused", at_ns=job.now_ns - SECOND // 4, step=newest, detail=refused)
    scribe.see("undoing", experiment)
    scribe.note(experiment, "restore-byte", "undone", **place)
    scribe.see("undone", experiment, mode="none")
    scribe.see("undo_seen", experiment, seen=True, quarantined_as=moved)
    at = injected.time_ns
    scribe.alert("CheckpointRefused", at + 4 * SECOND, at + 11 * SECOND)
    scribe.alert("JobRestarted", at + 4 * SECOND, at + 11 * SECOND)


def _node_drain(scribe: Scribe, experiment: Experiment) -> None:
    job = scribe.job
    job.run_steps(6)
    target = _target(scribe, experiment)
    node = str(target["node"])
    ledger = scribe.note(experiment, "none", "open", node=node)
    scribe.see("injecting", experiment, ledger=ledger)
    order = f"{job.now_ns:020d}-0d1a11"
    injected = scribe.see("injected", experiment, order=order)
    job.run_steps(1)
    job.event("order_accepted", step=job.step, order=order, node=node)
    job.checkpoint()
    job.pause(0.1)
    job.event("leave", f"launcher/{node}", step=job.step, node=node)
    job.event("order_done", step=job.step, order=order, node=node)
    job.pause(0.3)
    pids = [p.pid for p in job.attempt.ranks if p.node == node]
    scribe.see("injection_seen", experiment, seen=True, launcher_gone=True, ranks_gone=pids)
    job.pause(1.2)
    job.start([n for n in NODES if n != node], resume_from=job.step)
    job.run_seconds(experiment.hold_seconds)
    scribe.see("undoing", experiment)
    job.event("rejoin", f"launcher/{node}", node=node)
    job.run_steps(1)
    job.checkpoint()
    scribe.note(experiment, "none", "undone", node=node)
    undone = scribe.see("undone", experiment, mode="done")
    job.pause(1.5)
    job.start(resume_from=job.step)
    job.run_seconds(1.0)
    scribe.see("undo_seen", experiment, seen=True, world_size=4)
    at, over = injected.time_ns, undone.time_ns
    scribe.alert("JobRestarted", at + 4 * SECOND, at + 11 * SECOND)
    scribe.alert("WorldShrunk", at + 5 * SECOND, over + 4 * SECOND)
    scribe.alert("BaselineMissing", at + 6 * SECOND, over + 4 * SECOND)


def _newest(job: Job, before: int | None = None) -> int:
    steps = [e.step or 0 for e in job.events if e.kind == "checkpoint_verified"]
    return max(s for s in steps if before is None or s < before)
