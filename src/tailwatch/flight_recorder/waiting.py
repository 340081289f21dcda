"""Who waits for whom: the edges between ranks that dumps prove, or leave possible.

Contract: an edge from a rank to another says that the first enqueued an operation which the second
never joined. It is proven by the sequence numbers of one group, which are never compared with those
of another; for sends and receives by one side having more of them open than the other. Where the
second rank left no dump the edge is possible, no more.

Cost: linear in operations plus, per group, members that wait times members that are behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from tailwatch.flight_recorder.model import Dump, Dumps, Group, Operation
from tailwatch.flight_recorder.progress import Progress

Grade = Literal["proven", "counted", "possible"]


class Wait(NamedTuple):
    """`waiter` waits in `operation` for `missing`.

    `counted` edges rest on how many sends and receives are open at both ends, which is wrong when
    the watchdog of one end died before it noted what had finished.
    """

    waiter: int
    missing: int
    operation: Operation
    grade: Grade


def waits(dumps: Dumps, progress: Progress) -> list[Wait]:
    """Return every wait of every rank."""
    found = [
        wait
        for group, by_rank in progress.open.items()
        for wait in _in_collectives(dumps, progress, group, by_rank)
    ]
    found += _in_pairs(dumps)
    return found


def _in_collectives(
    dumps: Dumps, progress: Progress, group: Group, by_rank: Mapping[int, list[Operation]]
) -> Iterator[Wait]:
    joined = progress.joined[group]
    behind = sorted((joined.get(m, -1), m) for m in group.members if m in dumps.by_rank)
    silent = [member for member in group.members if member in dumps.silent]
    over = progress.finished.get(group, -1)
    for rank, operations in by_rank.items():
        for last, member in behind:
            if last >= operations[-1].sequence:
                break
            if member == rank:
                continue
            never = next(o for o in operations if o.sequence > last)
            lost = last < 0 and _began_after(dumps.by_rank[member], never)
            yield Wait(rank, member, never, "possible" if lost else "proven")
        really = next((o for o in operations if o.sequence > over), None)
        if really is not None:
            for member in silent:
                yield Wait(rank, member, really, "possible")


def _began_after(dump: Dump, operation: Operation) -> bool:
    """Say whether what a ring still holds begins after an operation, so that it may be lost."""
    return dump.first_record > 0 and dump.operations[0].created_ns > operation.created_ns


def _in_pairs(dumps: Dumps) -> Iterator[Wait]:
    pairs: dict[tuple[Group, int, int], tuple[list[Operation], list[Operation]]] = defaultdict(
        lambda: ([], [])
    )
    for rank, dump in dumps.by_rank.items():
        for operation in dump.operations:
            if operation.peer is None or operation.finished:
                continue
            sends = operation.name.startswith("send")
            ends = (rank, operation.peer) if sends else (operation.peer, rank)
            pairs[operation.group, *ends][0 if sends else 1].append(operation)
    for (_, source, target), (sent, received) in pairs.items():
        yield from _unmatched(dumps, source, target, sent, len(received))
        yield from _unmatched(dumps, target, source, received, len(sent))


def _unmatched(
    dumps: Dumps, waiter: int, missing: int, open_here: list[Operation], open_there: int
) -> Iterator[Wait]:
    if missing not in dumps.by_rank:
        if open_here:
            yield Wait(waiter, missing, open_here[0], "possible")
    elif len(open_here) > open_there:
        yield Wait(waiter, missing, open_here[open_there], "counted")


def ends(edges: Iterable[Wait]) -> list[frozenset[int]]:
    """Return the ends of all chains of waiting.

    An end is one rank that waits for nobody, or several that wait for each other.
    """
    after: dict[int, set[int]] = defaultdict(set)
    for edge in edges:
        after[edge.waiter].add(edge.missing)
        after.setdefault(edge.missing, set())
    component = _components(after)
    members: dict[int, set[int]] = defaultdict(set)
    for rank, number in component.items():
        members[number].add(rank)
    onward = {
        component[rank]
        for rank, others in after.items()
        if any(component[other] != component[rank] for other in others)
    }
    return [frozenset(ranks) for number, ranks in members.items() if number not in onward]


def reachable(start: Iterable[int], after: Mapping[int, set[int]]) -> set[int]:
    """Return `start` and everybody that leads from it."""
    found = set(start)
    work = list(found)
    while work:
        for other in after.get(work.pop(), set()) - found:
            found.add(other)
            work.append(other)
    return found


def _components(after: Mapping[int, set[int]]) -> dict[int, int]:
    """Number the strongly connected components (Tarjan, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    count = 0
    for start in after:
        if start in order:
            continue
        work = [(start, iter(sorted(after[start])))]
        order[start] = low[start] = len(order)
        stack.append(start)
        while work:
            rank, others = work[-1]
            for other in others:
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    work.append((other, iter(sorted(after[other]))))
                    break
                if other not in component:
                    low[rank] = min(low[rank], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[rank])
                if low[rank] == order[rank]:
                    while True:
                        member = stack.pop()
                        component[member] = count
                        if member == rank:
                            break
                    count += 1
    return component
