"""Records of ranks as arrays: the one shape in which runs are analysed.

Contract: a `StepTable` holds the comparable steps of one configuration on one set of nodes, in the
order of attempts and steps. Arrays have the shape (steps, ranks); a record that was lost is NaN
and nothing else, so a few lost ones move no median. No clock of one node is compared with that of
another. Raises UsageError for records that cannot be: unknown version, negative times, times in
the future, a rank outside its world.

Cost: about 15 us a record.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.errors import UsageError
from tailwatch.records import CHILDREN, PHASES, VERSION, Record, StepRecord

Values = NDArray[np.float64]

MAX_EXPERTS = 65_536
_DAY_NS = 86_400 * 10**9


class StepTable(msgspec.Struct, kw_only=True, frozen=True):
    """Steps of one configuration. Times are seconds.

    `kind` tells apart steps that do different work: the place of the update in its iteration.
    `phases` and `children` are those of `tailwatch.records`, `waits` go by group. `experts` has
    the shape (steps, experts): tokens of every expert; `owners` says which rank holds which.
    """

    run: str
    configuration: str
    attempt: NDArray[np.int64]
    step: NDArray[np.int64]
    kind: NDArray[np.int64]
    nodes: list[str]
    role: str
    duration: Values
    phases: dict[str, Values]
    children: dict[str, Values]
    waits: dict[str, Values]
    tokens: Values
    squares: Values
    rows: Values
    expert_tokens: Values
    experts: Values
    owners: NDArray[np.int64]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(self.duration.shape[1])

    def step_seconds(self) -> Values:
        """Return the time of each step: that of its slowest rank; shape (steps,)."""
        seconds: Values = np.nanmax(self.duration, axis=1)
        return seconds


def step_tables(records: Iterable[Record], source: str = "step records") -> list[StepTable]:
    """Return the tables in the records of a run, in the order of their first steps.

    Warm-up and supervised steps are left out, and steps that half of the ranks or more have no
    record of. A new table begins where ranks changed nodes.
    """
    groups: dict[tuple[str, int, str], dict[tuple[int, int], dict[int, StepRecord]]] = {}
    places: dict[tuple[int, str], dict[int, str]] = {}
    kept: list[StepRecord] = []
    horizon = time.time_ns() + _DAY_NS
    for record in records:
        if not isinstance(record, StepRecord):
            continue
        _check(record, source, horizon)
        if record.stage == "grpo" and not record.warmup:
            kept.append(record)
            places.setdefault((record.attempt, record.configuration), {})[record.rank] = record.node
    for record in kept:
        place = places[record.attempt, record.configuration]
        key = (record.configuration, record.world_size, repr(sorted(place.items())))
        steps = groups.setdefault(key, {})
        steps.setdefault((record.attempt, record.step), {}).setdefault(record.rank, record)
    tables = []
    for found in sorted(groups.values(), key=min):
        whole = {
            key: ranks
            for key, ranks in sorted(found.items())
            if 2 * len(ranks) > next(iter(ranks.values())).world_size
        }
        if whole:
            tables.append(_table(whole))
    return tables


def _check(record: StepRecord, source: str, horizon: int) -> None:
    place = f"attempt {record.attempt}, step {record.step}, rank {record.rank}"

    def need(ok: bool, what: str) -> None:
        if not ok:
            raise UsageError(what, source=source, place=place)

    known = VERSION - 1 <= record.version <= VERSION
    need(known, f"record of version {record.version}, expected {VERSION} or {VERSION - 1}")
    need(min(record.attempt, record.step) >= 0, "expected an attempt and a step of 0 or more")
    need(record.world_size >= 1, f"world of {record.world_size} ranks, expected 1 or more")
    need(0 <= record.rank < record.world_size, f"is no rank of a world of {record.world_size}")
    spans = (*record.phases_ns.values(), *record.children_ns.values(), *record.waits_ns.values())
    times = (record.duration_ns, record.start_ns, *spans)
    need(min(times) >= 0, f"holds a time of {min(times)} ns, expected 0 or more")
    need(record.start_ns <= horizon, "starts more than a day in the future")
    experts = record.first_expert + len(record.expert_tokens)
    need(0 <= record.first_expert <= experts <= MAX_EXPERTS, f"names expert {experts}")
    counts = (record.tokens, *record.expert_tokens, *record.rows_to, *record.rows_from)
    need(min(counts) >= 0, f"counts {min(counts)} tokens, expected 0 or more")


def _table(found: dict[tuple[int, int], dict[int, StepRecord]]) -> StepTable:
    first = next(iter(next(iter(found.values())).values()))
    steps, ranks = len(found), first.world_size
    nodes = ["?"] * ranks
    experts = 0
    for per_rank in found.values():
        for record in per_rank.values():
            nodes[record.rank] = record.node
            experts = max(experts, record.first_expert + len(record.expert_tokens))

    def empty(width: int = ranks) -> Values:
        return np.full((steps, width), np.nan)

    duration, tokens, squares, rows, own_tokens = (empty() for _ in range(5))
    load = empty(experts)
    owners = np.full(experts, -1, dtype=np.int64)
    phases = {name: empty() for name in PHASES}
    children = {name: empty() for name in CHILDREN}
    waits: dict[str, Values] = {}
    for row, per_rank in enumerate(found.values()):
        for rank, record in per_rank.items():
            at = (row, rank)
            duration[at] = record.duration_ns
            tokens[at], squares[at] = record.tokens, record.squared_tokens
            rows[at] = sum(record.rows_to) + sum(record.rows_from)
            own_tokens[at] = sum(record.expert_tokens)
            mine = slice(record.first_expert, record.first_expert + len(record.expert_tokens))
            load[row, mine], owners[mine] = record.expert_tokens, rank
            for name, table in (("phases", phases), ("children", children)):
                spans = record.phases_ns if name == "phases" else record.children_ns
                for part, values in table.items():
                    values[at] = spans.get(part, 0)
            for group, waited in record.waits_ns.items():
                waits.setdefault(group, empty())[at] = waited
    for values in (duration, *phases.values(), *children.values(), *waits.values()):
        values /= 1e9
    last = [next(iter(per_rank.values())) for per_rank in found.values()]
    return StepTable(
        run=first.run,
        configuration=first.configuration,
        attempt=np.array([attempt for attempt, _ in found]),
        step=np.array([step for _, step in found]),
        kind=np.array([record.staleness for record in last]),
        nodes=nodes,
        role=first.role,
        duration=duration,
        phases=phases,
        children=children,
        waits=waits,
        tokens=tokens,
        squares=squares,
        rows=rows,
        expert_tokens=own_tokens,
        experts=load,
        owners=owners,
    )
