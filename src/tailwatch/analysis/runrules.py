"""The verdict on a run from its step records.

Contract: each kind of cause makes its candidate by itself (`slowranks`, `loads`,
`links`, `pauses`); the one that costs
the job most time is the verdict, and what has no peers to be compared with is asked only when none
of the others is found. Nobody is accused because others were slow: a rank alone, too few steps and
slow steps without evidence are `unknown`, with the reason.

Cost: some 20 ms for 400 steps of 4 ranks, 1 s for 300 steps of 1,024 ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import msgspec
import numpy as np

from tailwatch.analysis.candidate import HISTORY, Candidate, Steps, usual_seconds
from tailwatch.analysis.diagnosis import Diagnosis, Placement, lower_share
from tailwatch.analysis.idle import idle_seconds, micro_stalls
from tailwatch.analysis.links import link, network
from tailwatch.analysis.loads import expert_load, sequence_length
from tailwatch.analysis.ownwork import own_work
from tailwatch.analysis.pauses import spans
from tailwatch.analysis.placement import propose
from tailwatch.analysis.series import spread
from tailwatch.analysis.slowranks import workers
from tailwatch.analysis.steptable import StepTable, step_tables
from tailwatch.analysis.wholejob import whole_job
from tailwatch.records import Record

MIN_STEPS = 20
LEAST_SLOWDOWN = 1.03
LEAST_SHARE = 0.25
LASTING_NOISE = 0.5
GONE_NOISE = 1.0
PASSING_STEPS = 10
FROM_THE_START = 5


def diagnose_records(records: Iterable[Record], source: str = "step records") -> Diagnosis:
    """Return the diagnosis of a run; of several configurations that of the costliest cause."""
    tables = step_tables(records, source)
    if not tables:
        return Diagnosis(
            verdict="unknown",
            reasons=["no comparable step: only warm-up, supervised or incomplete ones"],
        )
    found = [(table, diagnose_table(table)) for table in tables]
    table, worst = max(found, key=lambda pair: (pair[1].gpu_hours_lost or 0.0, len(pair[0].step)))
    if len(found) > 1:
        named = f"of {len(found)} configurations or placements: {table.configuration}"
        worst = msgspec.structs.replace(worst, reasons=[*worst.reasons, named])
    return worst


def diagnose_table(table: StepTable) -> Diagnosis:
    """Return the diagnosis of the steps of one configuration."""
    if len(table.step) < MIN_STEPS:
        text = f"{len(table.step)} comparable steps, expected {MIN_STEPS} or more"
        return Diagnosis(verdict="unknown", reasons=[text])
    with warnings.catch_warnings():
        # A step may lack the records that a median is taken of: NaN is the answer wanted.
        warnings.simplefilter("ignore", RuntimeWarning)
        usual, past = usual_seconds(table)
        steps = Steps(table, own_work(table), usual, past)
        candidates = _candidates(steps)
        found = _verdict(steps, candidates)
        return msgspec.structs.replace(
            found, micro_stalls=micro_stalls(table), idle_s=idle_seconds(table, steps.work)
        )


def _candidates(steps: Steps) -> list[Candidate]:
    """Return the candidates that matter, the verdict first."""
    # Spans are measured, not inferred: noise elsewhere does not make them doubtful.
    named = [c for c in spans(steps) if _slowdown(steps, c) >= LEAST_SLOWDOWN]
    if steps.table.world_size > 1:
        for rule in (workers, expert_load, sequence_length, link):
            named += _mattering(steps, rule(steps))
    named.sort(key=lambda candidate: -candidate.total_s)
    if named and _share(steps, named[0]) >= LEAST_SHARE:
        return named
    for rule in (network, whole_job):
        named += _mattering(steps, rule(steps))
    return sorted(named, key=lambda candidate: -candidate.total_s)


def _mattering(steps: Steps, candidate: Candidate | None) -> list[Candidate]:
    """Return the candidate if steps get longer by it than noise and passing load make them."""
    if candidate is None or _slowdown(steps, candidate) < LEAST_SLOWDOWN:
        return []
    lasts = candidate.last >= len(steps.usual) - max(10, len(steps.usual) // 20)
    noise = spread((steps.table.step_seconds() / steps.usual)[:, None], PASSING_STEPS)
    least = 1 + (LASTING_NOISE if lasts else GONE_NOISE) * noise
    return [candidate] if _slowdown(steps, candidate) >= least else []


def _share(steps: Steps, candidate: Candidate) -> float:
    """Return which share of what the steps take longer than before a candidate explains.

    1 where there is no "before", or where the steps do not take longer than the candidate costs.
    """
    if steps.past[candidate.first]:
        return 1.0
    seconds = steps.table.step_seconds()
    mean = np.zeros(len(seconds))
    for kind in np.unique(steps.table.kind):
        same = steps.table.kind == kind
        mean[same] = seconds[same & steps.past].mean()
    part = slice(candidate.first, candidate.last + 1)
    longer = float((seconds[part] - mean[part]).sum())
    return min(candidate.total_s / longer, 1.0) if longer > 0 else 1.0


def _slowdown(steps: Steps, candidate: Candidate) -> float:
    """Return the step time over that without the candidate, while it lasts."""
    part = slice(candidate.first, candidate.last + 1)
    took = float(steps.table.step_seconds()[part].sum())
    return took / max(took - float(candidate.cost[part].sum()), 0.05 * took)


def _verdict(steps: Steps, candidates: list[Candidate]) -> Diagnosis:
    if not candidates:
        return _nothing(steps)
    table, main = steps.table, candidates[0]
    seconds = table.step_seconds()
    part = slice(main.first, main.last + 1)
    share = _share(steps, main)
    if steps.past[main.first]:
        # There is no "before": what all candidates cost together is all the excess that is known.
        share = main.total_s / sum(candidate.total_s for candidate in candidates)
    slowdown = _slowdown(steps, main)
    reasons = [main.reason]
    reasons += [f"besides: {other.reason}" for other in candidates[1:3]]
    if main.last < len(seconds) - max(10, len(seconds) // 20):
        reasons.append(f"it went away after step {int(table.step[main.last])}")
    step_s = float(seconds[part].mean())
    return Diagnosis(
        verdict=main.verdict,
        slowdown=slowdown,
        workers=main.workers,
        onset_step=int(table.step[main.first]) if main.first >= FROM_THE_START else None,
        explained_share=share,
        confidence=main.confidence,
        gpu_hours_lost=main.total_s * table.world_size / 3600,
        what_if={"step_s": step_s, "step_s_without": step_s / slowdown, "slowdown": slowdown},
        placement=_placement(steps, main),
        reasons=reasons,
    )


def _placement(steps: Steps, main: Candidate) -> Placement | None:
    if main.verdict != "expert_load":
        return None
    experts = next(work.seconds for work in steps.work if work.name == "experts")
    return propose(steps.table, experts, main.first, main.last)


def _nothing(steps: Steps) -> Diagnosis:
    """Return `none`, or `unknown` when something is slow or nobody could have been compared."""
    table = steps.table
    seconds = table.step_seconds()
    rest = ~steps.past
    what_if = {"step_s": float(seconds.mean())}
    if rest.sum() >= HISTORY // 2:
        slower = np.median(seconds[rest] / steps.usual[rest])
        what_if["slowdown"] = float(slower)
        noise = 1.4826 * np.median(np.abs(seconds[steps.past] / steps.usual[steps.past] - 1))
        if slower > 1 + max(0.1, 2 * float(noise)):
            text = (
                f"steps take {slower:.2f} times as long as the first ones, and no rank, load, "
                "link or pause in the records explains it"
            )
            return Diagnosis(verdict="unknown", what_if=what_if, reasons=[text])
    if table.world_size == 1:
        return Diagnosis(
            verdict="unknown", what_if=what_if, reasons=["one rank: there are no peers to compare"]
        )
    if not steps.work:
        return Diagnosis(
            verdict="unknown", what_if=what_if, reasons=["the records hold no time of own work"]
        )
    agree = int((seconds < 1.5 * steps.usual).sum())
    return Diagnosis(
        verdict="none",
        slowdown=1.0,
        explained_share=None,
        confidence=lower_share(agree, len(seconds)),
        gpu_hours_lost=0.0,
        what_if=what_if,
        reasons=[f"{len(seconds)} steps of {table.world_size} ranks: nobody is slow for long"],
    )
