"""Episodes with a known cause: recorded steps of a run, replayed with a fault.

Contract: what each rank did itself is taken from recorded steps, drawn in blocks of whole
iterations; where ranks meet they wait for the last, exactly as the exchanges of the trainer make
them, and the records say what its recorder would have said. So a delay is inherited by the ranks
that wait for it, and what the recorder cannot separate (waiting inside the backward pass) is not
separated here either. The same seed gives the same episode. A step has two updates an iteration,
as recorded.

Cost: about 20 us a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.steptable import StepTable, Values
from tailwatch.records import StepRecord

FaultKind = Literal[
    "none", "compute", "rollout", "steal", "link", "experts", "sequences", "gc", "data",
    "checkpoint", "whole_job",
]  # fmt: skip

BLOCK = 10
# How much of a rank's dense work lies before the first exchange; the backward pass is longer.
_FORWARD = 0.4
_PAUSE_EVERY = 7
_CHECKPOINT_EVERY = 16


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong from step index `onset` on: the step takes `size` longer (0.3 is 30 %)."""

    kind: FaultKind
    size: float = 0.0
    onset: int = 0
    rank: int = 0
    peer: int = 1


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """Records of an episode and what is true of it.

    `guilty` are the ranks at fault (none: nobody in particular), `first_step` is the number of the
    first step that the fault touches; None in a healthy one.
    """

    records: list[StepRecord]
    fault: Fault
    guilty: frozenset[int]
    first_step: int | None


def replay(
    base: StepTable, fault: Fault, *, steps: int, seed: int, cv: float | None = None
) -> Episode:
    """Return an episode of `steps` steps.

    Args:
        cv: variation to which recorded times are shrunk around their medians; as recorded if None.
    """
    return _Replay(base, fault, steps, np.random.default_rng(seed), cv).episode()


class _Replay:
    def __init__(
        self, base: StepTable, fault: Fault, steps: int, rng: np.random.Generator, cv: float | None
    ) -> None:
        self._base, self._fault, self._rng = base, fault, rng
        self._drawn = self._draw(steps)
        self._kind = base.kind[self._drawn]
        self._ranks = base.world_size
        self._on = np.arange(steps) >= fault.onset
        if fault.kind == "none":
            self._on[:] = False
        self._touched = self._on
        children = np.sum(list(base.children.values()), axis=0)
        waited = base.waits["dp"]
        exchanging = sum(base.phases[name] for name in ("weight_sync", "advantage", "grad_sync"))
        self.dense = self._take(base.phases["forward_backward"] - children, cv)
        self.experts = self._take(base.children["ep_experts"], cv)
        self.rollout = self._take(base.phases["rollout_generate"], cv)
        self.reward = self._take(base.phases["reward"], cv)
        self.optimizer = self._take(base.phases["optimizer"], cv)
        self.data = self._take(base.phases["data"], cv)
        self.exchange = self._take(np.asarray(exchanging) - waited, cv)
        # Who waited least shows what the exchange itself takes.
        self.dispatch = self._alike(base.children["ep_dispatch"], cv)
        self.combine = self._alike(base.children["ep_combine"], cv)
        self.counts = self._alike(base.children["ep_counts"], cv)
        self.reduce = self._alike(waited, cv)
        self.gc = np.zeros_like(self.dense)
        self.checkpoint = np.zeros_like(self.dense)
        self._save()
        self.tokens = np.nan_to_num(base.tokens[self._drawn])
        self.loads = np.nan_to_num(base.experts[self._drawn])
        self.step_s = np.nanmedian(base.step_seconds())

    def _draw(self, steps: int) -> NDArray[np.int64]:
        """Draw blocks of whole iterations of the recording."""
        starts = np.flatnonzero((self._base.kind == 0) & np.isfinite(self._base.duration).all(1))
        starts = starts[starts <= len(self._base.kind) - BLOCK]
        picked = self._rng.choice(starts, size=-(-steps // BLOCK))
        return np.concatenate([np.arange(start, start + BLOCK) for start in picked])[:steps]

    def _take(self, seconds: Values, cv: float | None) -> Values:
        values = np.maximum(np.nan_to_num(seconds), 0.0)
        drawn: Values = values[self._drawn].copy()
        if cv is None:
            return drawn
        for kind in np.unique(self._kind):
            usual = np.median(values[self._base.kind == kind], axis=0)
            part = drawn[self._kind == kind]
            off = part - usual
            scale = 1.4826 * np.median(np.abs(off)) / max(float(usual.mean()), 1e-12)
            shrink = min(1.0, cv / scale) if scale > 0 else 1.0
            limit = 4 * cv * usual
            drawn[self._kind == kind] = usual + np.clip(off * shrink, -limit, limit)
        return np.maximum(drawn, 0.0)

    def _alike(self, seconds: Values, cv: float | None) -> Values:
        least = np.nanmin(seconds, axis=1, keepdims=True)
        return self._take(np.broadcast_to(least, seconds.shape), cv)

    def _save(self) -> None:
        """A checkpoint now and then, as long as the recorded ones."""
        recorded = self._base.phases["checkpoint"]
        took = recorded[np.nan_to_num(recorded) > 0]
        at = np.flatnonzero((np.arange(len(self._drawn)) + 1) % _CHECKPOINT_EVERY == 0)
        if len(took):
            usual = float(np.median(took))
            noise = self._rng.normal(1.0, 0.05, size=(len(at), 1))
            self.checkpoint[at] = usual * np.clip(noise, 0.8, 1.2)

    def _inject(self) -> frozenset[int]:
        fault, on = self._fault, self._on
        extra = fault.size * self.step_s
        rank, stretch = fault.rank, self._stretch()
        if fault.kind == "compute":
            self.dense[on, rank] += extra
            return frozenset({rank})
        if fault.kind == "rollout":
            # Rollouts come once in an iteration of two steps.
            self._touched = on & (self._kind == 0)
            self.rollout[self._touched, rank] += 2 * extra
            return frozenset({rank})
        if fault.kind == "steal":
            node = self._base.nodes[rank]
            hit = np.array([name == node for name in self._base.nodes])
            for part in self._own():
                part[on[:, None] & hit] *= stretch
            return frozenset(np.flatnonzero(hit).tolist())
        if fault.kind == "link":
            for end in (rank, fault.peer):
                self.dispatch[on, end] += extra
            return frozenset({rank, fault.peer})
        if fault.kind == "experts":
            return self._skew_experts()
        if fault.kind == "sequences":
            self._skew_sequences()
        elif fault.kind == "gc":
            at = np.flatnonzero(on)[::_PAUSE_EVERY]
            self._touched = np.isin(np.arange(len(on)), at)
            self.gc[at, self._rng.integers(0, self._ranks, len(at))] = extra * _PAUSE_EVERY
        elif fault.kind == "data":
            self._touched = on & (self._kind == 0)
            self.data[self._touched, rank] += 2 * extra
            return frozenset({rank})
        elif fault.kind == "checkpoint":
            self._touched = on & (self.checkpoint > 0).any(axis=1)
            self.checkpoint[self._touched] += extra * _CHECKPOINT_EVERY
        elif fault.kind == "whole_job":
            for part in self._own():
                part[on] *= stretch
        return frozenset()

    def _own(self) -> tuple[Values, ...]:
        return (self.dense, self.experts, self.rollout, self.reward, self.optimizer)

    def _stretch(self) -> float:
        """Return by how much own work must be longer to make the step `size` longer."""
        own = float(np.sum(self._own(), axis=0).mean())
        return 1 + self._fault.size * float(self.step_s) / max(own, 1e-9)

    def _skew_experts(self) -> frozenset[int]:
        """Send tokens of all other experts to those of one rank, until it takes `size` longer."""
        rank, on = self._fault.rank, self._on
        mine = self._base.owners == rank
        total = self.loads.sum(axis=1)
        even = np.broadcast_to(total[:, None] / self.loads.shape[1], self.loads.shape)
        self.loads = even * self._rng.normal(1.0, 0.02, self.loads.shape)
        # Where experts are what a step is made of, as in large models: half of its time.
        a_token = 0.5 * self.step_s * self._ranks / max(float(np.median(total)), 1.0)
        noise = self.experts / np.maximum(np.median(self.experts), 1e-12)
        more = self._fault.size * self.step_s / a_token
        share = np.minimum(more / np.maximum(self.loads[:, ~mine].sum(axis=1), 1.0), 0.95)
        moved = np.where(on, share, 0.0)[:, None] * self.loads
        self.loads = self.loads - np.where(mine, 0.0, moved)
        gained = np.where(mine, 0.0, moved).sum(axis=1)
        self.loads[:, mine] += (gained / mine.sum())[:, None]
        owned = [self.loads[:, self._base.owners == r].sum(axis=1) for r in range(self._ranks)]
        self.experts = np.stack(owned, axis=1) * a_token * np.clip(noise, 0.5, 2.0)
        return frozenset({rank})

    def _skew_sequences(self) -> None:
        """Give the sequences of each step unequally to the ranks; time follows tokens."""
        shape = self.tokens.shape
        worst = self._rng.integers(0, self._ranks, shape[0])
        dense = max(float(np.median(self.dense)), 1e-12)
        factor = 1 + self._rng.uniform(0.0, 0.3, size=shape) * self._fault.size
        factor[np.arange(shape[0]), worst] = 1 + self._fault.size * self.step_s / dense
        factor[~self._on] = self._rng.uniform(1.0, 1.03, size=((~self._on).sum(), shape[1]))
        self.tokens = np.rint(self.tokens * factor)
        self.dense *= factor

    def episode(self) -> Episode:
        """Play the steps and return their records."""
        guilty = self._inject()
        first = int(np.argmax(self._touched)) + 1 if self._touched.any() else None
        return Episode(records=self._play(), fault=self._fault, guilty=guilty, first_step=first)

    def _play(self) -> list[StepRecord]:
        shape = self.dense.shape
        first = self._kind == 0
        now = np.zeros(shape)
        phases: dict[str, Values] = {}
        waits = {"dp": np.zeros(shape), "ep": np.zeros(shape)}

        def work(seconds: Values) -> None:
            nonlocal now
            now = now + seconds

        def meet(takes: Values, where: NDArray[np.bool_]) -> Values:
            """All ranks go on when the last has come, each after its own transfer time."""
            nonlocal now
            came = now
            left = np.where(where[:, None], now.max(axis=1, keepdims=True) + takes, now)
            now = left
            return left - came

        always = np.ones(len(first), dtype=bool)
        synced = meet(self.reduce / 3, first)
        for name in ("data", "rollout_generate", "reward"):
            phases[name] = {"data": self.data, "rollout_generate": self.rollout}.get(
                name, self.reward
            )
            work(phases[name])
        summed = meet(self.reduce / 3, first)
        work(self.gc)
        began = now
        work(_FORWARD * self.dense)
        counted = meet(self.counts, always)
        work(self.dispatch)
        work(self.experts)
        combined = meet(self.combine, always)
        work((1 - _FORWARD) * self.dense)
        # Rows of the backward pass: nobody times them, they are part of forward_backward.
        meet(self.combine / 2, always)
        phases["forward_backward"] = now - began
        work(self.exchange)
        reduced = meet(np.where(first[:, None], self.reduce / 3, self.reduce), always)
        work(self.optimizer)
        work(self.checkpoint)
        saved: NDArray[np.bool_] = np.asarray((self.checkpoint > 0).any(axis=1))
        meet(np.zeros(shape), saved)
        phases |= {
            "gc": self.gc,
            "weight_sync": synced,
            "advantage": summed,
            "grad_sync": self.exchange + reduced,
            "optimizer": self.optimizer,
            "checkpoint": self.checkpoint,
        }
        waits["dp"], waits["ep"] = synced + summed + reduced, counted
        children = {
            "ep_counts": counted,
            "ep_dispatch": self.dispatch,
            "ep_experts": self.experts,
            "ep_combine": combined,
        }
        return self._records(now, phases, children, waits)

    def _records(
        self,
        duration: Values,
        phases: dict[str, Values],
        children: dict[str, Values],
        waits: dict[str, Values],
    ) -> list[StepRecord]:
        base = self._base
        records = []
        spans = [_nanoseconds(part) for part in (phases, children, waits)]
        total = np.rint(duration * 1e9).astype(np.int64)
        held = [np.flatnonzero(base.owners == rank) for rank in range(self._ranks)]
        rows = np.nan_to_num(base.rows[self._drawn]).astype(np.int64)
        start = 10**18
        for step in range(len(total)):
            for rank in range(self._ranks):
                mine = held[rank]
                records.append(
                    StepRecord(
                        run="episode",
                        attempt=1,
                        step=step + 1,
                        iteration=step // 2,
                        rank=rank,
                        node=base.nodes[rank],
                        world_size=self._ranks,
                        configuration=base.configuration,
                        stage="grpo",
                        start_ns=start,
                        start_mono_ns=start,
                        duration_ns=int(total[step, rank]),
                        phases_ns=_of(spans[0], step, rank),
                        children_ns=_of(spans[1], step, rank),
                        waits_ns=_of(spans[2], step, rank),
                        tokens=int(self.tokens[step, rank]),
                        rows_from=[int(rows[step, rank])],
                        first_expert=int(mine[0]) if len(mine) else 0,
                        expert_tokens=[int(t) for t in self.loads[step, mine]],
                        staleness=int(self._kind[step]),
                    )
                )
            start += int(total[step].max())
        return records


def _nanoseconds(parts: dict[str, Values]) -> dict[str, list[list[int]]]:
    return {name: np.rint(part * 1e9).astype(np.int64).tolist() for name, part in parts.items()}


def _of(parts: dict[str, list[list[int]]], step: int, rank: int) -> dict[str, int]:
    return {name: part[step][rank] for name, part in parts.items()}


def lost(records: Sequence[StepRecord], share: float, seed: int) -> list[StepRecord]:
    """Return the records without a random share of them, as late or lost ones leave them."""
    keep = np.random.default_rng(seed).random(len(records)) >= share
    return [record for record, kept in zip(records, keep, strict=True) if kept]
