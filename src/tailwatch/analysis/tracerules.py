"""The verdict on an operation trace: worker, stage, sequence_length, gc, link, data_loader, none.

Contract: a rank is compared with the ranks of its own stage in the same step by what it computed
itself, never by when it came to a collective, because lateness is inherited through the pipeline.
It is accused only when it is slower than its peers in nearly all steps of a stretch *and* the step
is shorter without it in the replay. Thresholds are those of the sources where they name one.

Sources: OSDI 2025 what-if analysis: S >= 1.1 is straggling, sequence imbalance shows as forward
and backward times that go together, collection pauses stretch forward passes alone. The
correlation is taken within a rank (over ranks, one slow rank alone makes it 0.999), where noise
lowers it, and so counts from 0.8 on and only when the variation costs a good part of the excess.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.compute import Compute
from tailwatch.analysis.diagnosis import Diagnosis, Verdict, Worker, lower_share
from tailwatch.analysis.interference import interference
from tailwatch.analysis.persistence import Episode, episode
from tailwatch.analysis.pipeline import COLLECTIVES, Pipeline, UnknownSchedule
from tailwatch.analysis.trace import FORWARD, P2P, Op, Trace
from tailwatch.analysis.whatif import Excess, WhatIf

STRAGGLING = 1.1
MAJOR = 0.5
SEQUENCE_CORRELATION = 0.8
SEQUENCE_SHARE = 0.2


def diagnose_trace(trace: Trace) -> Diagnosis:
    """Return the diagnosis of a trace."""
    reasons = []
    if trace.dropped_steps:
        reasons.append(f"{trace.dropped_steps} steps lack operations and are left out")
    try:
        pipeline = Pipeline(trace)
    except UnknownSchedule as error:
        return Diagnosis(verdict="unknown", reasons=[*reasons, f"no replay: {error}"])
    found = _TraceRules(trace, pipeline).diagnose()
    reasons += [
        f"interference: {i.kind} of stage {i.stage} takes {i.ratio:.2f} times as long while group "
        f"{i.other} transfers ({i.overlapping} times)"
        for i in interference(trace, pipeline)[:3]
    ]
    return msgspec.structs.replace(found, reasons=[*found.reasons, *reasons])


class _TraceRules:
    def __init__(self, trace: Trace, pipeline: Pipeline) -> None:
        self._trace = trace
        self._pipeline = pipeline
        self._what_if = WhatIf(trace, pipeline)
        self._excess = self._what_if.excess()
        self._compute = Compute(trace)

    def diagnose(self) -> Diagnosis:
        """Return the verdict; the first of the rules that holds, most specific evidence first."""
        what_if, excess = self._what_if, self._excess
        if self._trace.ranks.size == 1:
            return self._result("unknown", reasons=["one rank: there are no peers to compare with"])
        gaps = self._gaps()
        if gaps is not None:
            return gaps
        if what_if.slowdown < STRAGGLING:
            text = f"S {what_if.slowdown:.3f} is below {STRAGGLING}: no straggling"
            return self._result("none", reasons=[text], confidence=self._step_confidence(False))
        for rule in (self._worker, self._sequence, self._collection, self._stage, self._link):
            found = rule()
            if found is not None:
                return found
        return self._result(
            "unknown",
            reasons=[
                f"S {what_if.slowdown:.3f}, but no rank, stage, sequence, pause or link explains "
                f"half of the excess ({_shares(excess)})"
            ],
        )

    def _worker(self) -> Diagnosis | None:
        suspects = self._compute.suspects()
        if not suspects:
            return None
        without = self._what_if.without([(s.dp_rank, s.stage) for s in suspects])
        share = self._what_if.share(without)
        if share < MAJOR:
            return None
        first = min(s.episode.first for s in suspects)
        workers = [
            Worker(
                rank=int(self._trace.ranks[s.dp_rank, s.stage]),
                dp_rank=s.dp_rank,
                stage=s.stage,
                node=None,
                phase="compute",
                ratio=s.ratio,
            )
            for s in suspects
        ]
        named = ", ".join(
            f"rank {w.rank} (dp rank {w.dp_rank}, stage {w.stage}) computes {w.ratio:.2f} times "
            "as long as its stage peers"
            for w in workers
        )
        return self._result(
            "worker",
            workers=workers,
            onset=first,
            share=share,
            confidence=max(s.episode.confidence for s in suspects),
            what_if={
                "slowdown_without_workers": without / self._what_if.ideal_s,
                "worker_share": share,
            },
            reasons=[named, f"without it the replayed step takes {without:.3f} s"],
        )

    def _sequence(self) -> Diagnosis | None:
        correlation = self._compute.correlation()
        if correlation < SEQUENCE_CORRELATION or self._excess.variation < SEQUENCE_SHARE:
            return None
        return self._result(
            "sequence_length",
            share=self._excess.variation,
            confidence=self._step_confidence(True),
            what_if={"forward_backward_correlation": correlation},
            reasons=[
                f"forward and backward times of a microbatch go together (correlation "
                f"{correlation:.2f} within a rank) and differ from one microbatch to the next: "
                "the batches are unequal, not the ranks",
                _shares(self._excess),
            ],
        )

    def _collection(self) -> Diagnosis | None:
        """Pauses of the interpreter: single forward passes stretched, their backward ones not."""
        stretched = self._compute.stretched()
        if not stretched.any():
            return None
        without = self._compute.usual_where(stretched)
        share = self._what_if.share(self._what_if.with_durations(without))
        by_rank = stretched.any(axis=3).sum(axis=0)
        if share < MAJOR or (by_rank > 0).sum() < 2 or by_rank.max() > 0.5 * by_rank.sum():
            return None
        return self._result(
            "gc",
            share=share,
            confidence=lower_share(int(stretched.any(axis=(1, 2, 3)).sum()), len(stretched)),
            reasons=[
                f"{int(stretched.sum())} single forward passes on {int((by_rank > 0).sum())} ranks "
                "are stretched while their backward passes are not: pauses of the interpreter"
            ],
        )

    def _stage(self) -> Diagnosis | None:
        if self._trace.stages < 2 or self._excess.stages < MAJOR:
            return None
        if self._trace.dp_size < 2:
            return self._result(
                "unknown",
                reasons=["one rank a stage: a slow rank and a heavy stage look the same"],
            )
        work = self._compute.own_seconds().mean(axis=1)
        per_stage = work.mean(axis=0)
        slow = int(np.argmax(per_stage))
        ratio = float(per_stage[slow] / np.median(np.delete(per_stage, slow)))
        cells = [(dp_rank, slow) for dp_rank in range(self._trace.dp_size)]
        without = self._what_if.without(cells)
        last = slow == self._trace.stages - 1
        return self._result(
            "stage",
            share=self._excess.stages,
            confidence=lower_share(int((work.argmax(axis=1) == slow).sum()), len(work)),
            what_if={
                "slow_stage": slow,
                "slowdown_without_stage": without / self._what_if.ideal_s,
                "stage_share": self._what_if.share(without),
            },
            reasons=[
                f"{'last ' if last else ''}stage {slow} computes {ratio:.2f} times as long as the "
                "other stages, on all of its ranks alike: the layers are split unevenly",
                _shares(self._excess),
            ],
        )

    def _link(self) -> Diagnosis | None:
        """Transfers that take longer on some ranks than the same transfers elsewhere."""
        if self._excess.transfers < MAJOR:
            return None
        best: tuple[float, str, tuple[int, ...], Episode] | None = None
        for kind in sorted({op.kind for op in self._pipeline.durations} & COLLECTIVES):
            ops = [op for op in self._pipeline.durations if op.kind == kind]
            cells = np.stack([self._pipeline.durations[op] for op in ops], axis=-1)
            usual = np.median(cells, axis=(1, 2))
            for stage in sorted({op.stage for op in ops}):
                mine = [i for i, op in enumerate(ops) if op.stage == stage]
                for dp_rank in range(self._trace.dp_size):
                    spent = np.median(cells[:, dp_rank, mine], axis=1)
                    stretch = episode(spent > 1.5 * usual, min(5, len(usual)))
                    cost = float((spent - usual).mean()) * len(mine)
                    if stretch is not None and (best is None or cost > best[0]):
                        best = (cost, kind, (dp_rank, stage), stretch)
        if best is None:
            return None
        _, kind, (dp_rank, stage), stretch = best
        rank = int(self._trace.ranks[dp_rank, stage])
        group = "pp" if kind in P2P else "dp"
        return self._result(
            "link",
            onset=stretch.first,
            share=self._excess.transfers,
            confidence=stretch.confidence,
            reasons=[
                f"{kind} (group {group}) takes longest at rank {rank} after all have come, in "
                f"{stretch.hits} of {stretch.steps} steps: the transfer, not the ranks"
            ],
        )

    def _gaps(self) -> Diagnosis | None:
        """Time between operations that nothing in the trace explains, before the first forward."""
        recorded = float(self._trace.step_seconds().mean())
        lost = recorded - self._what_if.step_s
        if lost < (STRAGGLING - 1) * self._what_if.step_s or self._what_if.slowdown - 1 > (
            lost / self._what_if.step_s
        ):
            return None
        first = Op(0, FORWARD, 0)
        waits = self._trace.start[first] - np.max(
            [
                self._trace.start[op] + self._trace.duration[op]
                for op in self._trace.start
                if op.stage == 0 and op.kind == "params-all-gather"
            ]
            or [np.zeros_like(self._trace.start[first])],
            axis=0,
        )
        before: NDArray[np.float64] = np.maximum(waits, 0.0).max(axis=1)
        share = float(before.mean()) / lost
        text = f"{lost:.3f} s of a step of {recorded:.3f} s lie between operations"
        if share < MAJOR:
            return self._result("unknown", reasons=[f"{text}, in no one place"])
        return self._result(
            "data_loader",
            slowdown=recorded / self._what_if.step_s,
            share=share,
            confidence=lower_share(int((before > 0.5 * lost).sum()), len(before)),
            reasons=[f"{text}, most of them before the first forward pass: waiting for data"],
        )

    def _step_confidence(self, straggling: bool) -> float:
        """Return the lower 95 % bound of the share of steps that agree."""
        steps = self._pipeline.simulate(self._pipeline.durations) / self._what_if.ideal_s
        agree = int(((steps >= STRAGGLING) == straggling).sum())
        return lower_share(agree, len(steps))

    def _result(
        self,
        verdict: Verdict,
        *,
        workers: list[Worker] | None = None,
        onset: int | None = None,
        share: float | None = None,
        confidence: float | None = None,
        slowdown: float | None = None,
        what_if: dict[str, float] | None = None,
        reasons: list[str],
    ) -> Diagnosis:
        simulated = self._what_if
        lost = max(simulated.step_s - simulated.ideal_s, 0.0) * len(self._trace.steps)
        shares = msgspec.structs.asdict(self._excess)
        found = {
            "step_s": float(self._trace.step_seconds().mean()),
            "replayed_step_s": simulated.step_s,
            "ideal_step_s": simulated.ideal_s,
            "slowdown": simulated.slowdown,
            **{f"excess_{name}": share for name, share in shares.items()},
            **(what_if or {}),
        }
        return msgspec.convert(
            {
                "verdict": verdict,
                "slowdown": slowdown if slowdown is not None else simulated.slowdown,
                "workers": workers or [],
                "onset_step": int(self._trace.steps[onset]) if onset else None,
                "explained_share": None if share is None else min(max(share, 0.0), 1.0),
                "confidence": confidence,
                "gpu_hours_lost": lost * self._trace.world_size / 3600,
                "what_if": {name: float(value) for name, value in found.items()},
                "reasons": reasons,
            },
            Diagnosis,
        )


def _shares(excess: Excess) -> str:
    return (
        f"excess by microbatch {excess.variation:.0%}, rank {excess.ranks:.0%}, stage "
        f"{excess.stages:.0%}, transfer {excess.transfers:.0%}"
    )
