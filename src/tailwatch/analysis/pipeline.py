"""When every operation of a pipeline and data parallel step would end, given how long each takes.

Contract: `Pipeline` is the dependency graph of a trace: compute operations of a stage in their
order, receive before compute before send, sends and receives in pairs, collectives over the data
parallel ranks of a stage (gradients, parameters), over the first and the last stage (embeddings)
or over everybody (clipping). `simulate` plays it with any durations, without the gaps between
operations that the trace does not explain. A collective ends for each of its ranks its own transfer
time after the last of them has come: that is what makes waiting follow from the graph instead of
being a duration. `UnknownSchedule` when sends and receives cannot be paired.

Source of the method: "Understanding Stragglers in Large Model Training Using What-if Analysis",
OSDI 2025, section 3. Cost: about 5 us an operation of a stage and replay for 100 (step, dp rank)
pairs, so some 5 ms a replay of the public traces.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from tailwatch.analysis.trace import BACKWARD, FORWARD, P2P, Op, Seconds, Trace

_EVERY_DP_RANK = {"params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"}
_FIRST_AND_LAST = "embedding-grads-all-reduce"
_EVERYBODY = "optimizer-clip-main-grad"

COLLECTIVES = {*P2P, *_EVERY_DP_RANK, _FIRST_AND_LAST, _EVERYBODY, "layernorm-grads-all-reduce"}
"""Kinds that move data; all other kinds compute."""


class UnknownSchedule(Exception):
    """The operations of a trace do not fit together as a pipeline schedule that is known here."""


class Pipeline:
    """The dependency graph of one trace, in an order in which it can be played."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._needs: dict[Op, list[Op]] = {op: [] for op in trace.start}
        self._group: dict[Op, tuple[Op, ...]] = {}
        for stage in range(trace.stages):
            self._add_stage(stage)
        self._pair_stages()
        self._add_wide_groups()
        self._order = self._sorted()
        self.durations = {op: self._own_duration(op) for op in trace.start}

    def simulate(self, durations: Mapping[Op, Seconds | float]) -> Seconds:
        """Return the time each step takes when operations take `durations`; shape (steps,)."""
        trace = self._trace
        nothing = np.zeros((len(trace.steps), trace.dp_size))
        ends: dict[Op, Seconds] = {}
        for op in self._order:
            if op in ends:
                continue
            group = self._group.get(op, (op,))
            came = nothing
            for member in group:
                for need in self._needs[member]:
                    came = np.maximum(came, ends[need])
            if op.kind in _EVERY_DP_RANK or op.kind == _EVERYBODY:
                came = np.broadcast_to(came.max(axis=1, keepdims=True), nothing.shape)
            for member in group:
                ends[member] = came + durations[member]
        last: Seconds = np.max([end.max(axis=1) for end in ends.values()], axis=0)
        return last

    def _own_duration(self, op: Op) -> Seconds:
        """Return an operation's time without what it waited for its peers."""
        trace = self._trace
        group = self._group.get(op)
        if group is None:
            return trace.duration[op]
        came: Seconds = np.max([trace.start[member] for member in group], axis=0)
        if op.kind not in P2P and op.kind != _FIRST_AND_LAST:
            came = came.max(axis=1, keepdims=True)
        # Clocks that differ a little, or a send that did not wait, make it negative.
        transfer: Seconds = np.maximum(trace.start[op] + trace.duration[op] - came, 0.0)
        return transfer

    def _in_order(self, stage: int, *kinds: str) -> list[Op]:
        found = [op for op in self._needs if op.stage == stage and (not kinds or op.kind in kinds)]
        return sorted(found, key=lambda op: (float(self._trace.start[op].mean()), op.place))

    def _add_stage(self, stage: int) -> None:
        compute = self._in_order(stage, FORWARD, BACKWARD)
        if not compute:
            raise UnknownSchedule(f"stage {stage} computes nothing")
        self._chain(compute)
        for kind in P2P:
            self._chain(self._in_order(stage, kind))
        rest = [op for op in self._in_order(stage) if op not in compute and op.kind not in P2P]
        start, duration = self._trace.start, self._trace.duration
        first = float(start[compute[0]].mean())
        ends = [float((start[op] + duration[op]).mean()) for op in compute]
        behind = compute[-1]
        for op in rest:
            began = float(start[op].mean())
            if began >= ends[-1]:
                # What follows the last backward pass comes one by one.
                self._needs[op].append(behind)
                behind = op
            elif began < first or op.kind == "params-all-gather":
                end = float((start[op] + duration[op]).mean())
                user = next((c for c in compute if float(start[c].mean()) >= end), compute[0])
                self._needs[user].append(op)
            else:
                # A collective that runs beside the backward pass: behind the newest that had ended.
                done = [c for c, end in zip(compute, ends, strict=True) if end <= began]
                self._needs[op].append(done[-1] if done else compute[0])
                self._needs[self._after(rest, op, ends[-1])].append(op)

    def _after(self, rest: list[Op], op: Op, end: float) -> Op:
        later = [o for o in rest if o != op and float(self._trace.start[o].mean()) >= end]
        if not later:
            raise UnknownSchedule(f"nothing of stage {op.stage} follows {op.kind} {op.place}")
        return later[0]

    def _chain(self, ops: list[Op]) -> None:
        for before, op in itertools.pairwise(ops):
            self._needs[op].append(before)

    def _pair_stages(self) -> None:
        """Pair the send behind each compute operation with the receive before its successor."""
        chunks = max(chunk for chunk, _ in self._trace.work.values()) + 1
        ends: dict[tuple[str, str, int, int], Op] = {}
        for stage in range(self._trace.stages):
            for way, compute_kind, start_chunk, end_chunk in (
                ("forward", FORWARD, 0, chunks - 1),
                ("backward", BACKWARD, chunks - 1, 0),
            ):
                compute = self._in_order(stage, compute_kind)
                for what, without in (("recv", start_chunk), ("send", end_chunk)):
                    moves = self._in_order(stage, f"{way}-{what}")
                    users = [op for op in compute if self._trace.work[op][0] != without]
                    if len(moves) != len(users):
                        raise UnknownSchedule(
                            f"stage {stage} has {len(moves)} {way}-{what} for {len(users)} "
                            f"{compute_kind} that need one"
                        )
                    for move, user in zip(moves, users, strict=True):
                        chunk, microbatch = self._trace.work[user]
                        if what == "send":
                            self._needs[move].append(user)
                            chunk += 1 if way == "forward" else -1
                        else:
                            self._needs[user].append(move)
                            self._receive_behind(move, user, compute)
                        ends[way, what, chunk, microbatch] = move
        for (way, what, chunk, microbatch), move in ends.items():
            other = ends.get((way, "recv" if what == "send" else "send", chunk, microbatch))
            if other is None:
                raise UnknownSchedule(f"{way}-{what} {move.place} of {move.stage} has no peer")
            self._group[move] = (move, other)

    def _receive_behind(self, move: Op, user: Op, compute: list[Op]) -> None:
        """A receive is posted when the compute operation of its kind before its user has ended."""
        at = compute.index(user)
        if at:
            self._needs[move].append(compute[at - 1])

    def _add_wide_groups(self) -> None:
        by_name: dict[tuple[str, int], list[Op]] = {}
        for op in self._needs:
            if op.kind in (_FIRST_AND_LAST, _EVERYBODY):
                by_name.setdefault((op.kind, op.place), []).append(op)
            elif op.kind in _EVERY_DP_RANK:
                self._group[op] = (op,)
        for members in by_name.values():
            for op in members:
                self._group[op] = tuple(members)

    def _sorted(self) -> list[Op]:
        """Return the operations so that all a group needs comes before its first member."""
        order: list[Op] = []
        state: dict[Op, bool] = {}
        for root in self._needs:
            stack = [(root, False)]
            while stack:
                op, leaving = stack.pop()
                head = self._group.get(op, (op,))
                key = min(head)
                if leaving:
                    state[key] = True
                    order.append(key)
                    continue
                if key in state:
                    if not state[key]:
                        raise UnknownSchedule(
                            f"{op.kind} {op.place} of stage {op.stage} needs itself"
                        )
                    continue
                state[key] = False
                stack.append((key, True))
                stack += [
                    (need, False)
                    for member in head
                    for need in self._needs[member]
                    if not state.get(min(self._group.get(need, (need,))), False)
                ]
        return order
