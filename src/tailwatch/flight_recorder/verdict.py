"""The verdict on a hang: a rank, the network, none, or what keeps it from saying.

Contract: a rank is a root only where others wait for it, it waits for nobody, and its dump proves
that it never joined (or, when its dump is missing or has no bytes, everybody else of the group
joined and more than half of the group left dumps). Everybody else who waits is a victim. All joined
and none finished is the network or a device below it; ranks that wait for each other in a circle,
and evidence that is too thin, give `unknown` with the reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tailwatch.flight_recorder.device import all_joined
from tailwatch.flight_recorder.model import Dumps, Group, Operation
from tailwatch.flight_recorder.progress import Progress
from tailwatch.flight_recorder.report import Diagnosis, StuckGroup, ranks_text
from tailwatch.flight_recorder.waiting import Wait, ends, reachable, waits

_SAME_SIZES = frozenset(
    {"all_reduce", "allreduce_coalesced", "broadcast", "_all_gather_base", "_reduce_scatter_base"}
)


def diagnose(dumps: Dumps) -> Diagnosis:
    """Return who or what the job waits for."""
    notes = _about_the_dumps(dumps)
    if not dumps.by_rank:
        return Diagnosis("unknown", [], [], [], [*notes, "no dump says anything"])
    stuck = sorted(
        rank
        for rank, dump in dumps.by_rank.items()
        if any(not operation.finished for operation in dump.operations)
    )
    if not stuck:
        return _nobody_waits(dumps, notes)
    progress = Progress(dumps)
    found = _mismatch(dumps) or _never_joined(dumps, progress)
    if found is None:
        found = all_joined(dumps, progress)
    victims = [rank for rank in stuck if rank not in found.root_ranks]
    return msgspec.structs.replace(found, victims=victims, reasons=[*found.reasons, *notes])


def _about_the_dumps(dumps: Dumps) -> list[str]:
    notes = []
    if dumps.empty:
        notes.append(f"{ranks_text(dumps.empty)} left a dump without a byte")
    if missing := dumps.silent - dumps.empty:
        notes.append(f"{ranks_text(missing)} left no dump")
    return notes


def _nobody_waits(dumps: Dumps, notes: list[str]) -> Diagnosis:
    said = any(dump.operations or dump.positions for dump in dumps.by_rank.values())
    if dumps.silent or not said:
        reason = (
            "nobody who left a dump waits in an operation"
            if said
            else "no dump holds an operation; was recording on (TORCH_FR_BUFFER_SIZE)?"
        )
        return Diagnosis("unknown", [], [], [], [reason, *notes])
    return Diagnosis("none", [], [], [], ["every operation of every rank has finished", *notes])


# What never matched.


def _mismatch(dumps: Dumps) -> Diagnosis | None:
    """Find the first collective of a group that its ranks do not agree about."""
    calls: dict[tuple[Group, int], dict[int, list[Operation]]] = defaultdict(dict)
    for rank, dump in dumps.by_rank.items():
        for operation in dump.operations:
            if not operation.p2p:
                of_rank = calls[operation.group, operation.sequence]
                of_rank.setdefault(rank, []).append(operation)
    disputed: dict[Group, int] = {}
    for (group, sequence), by_rank in calls.items():
        is_open = any(not o.finished for operations in by_rank.values() for o in operations)
        if is_open and len(_kinds(by_rank)) > 1:
            disputed[group] = min(sequence, disputed.get(group, sequence))
    if not disputed:
        return None
    roots: set[int] = set()
    groups, reasons = [], []
    for group, sequence in sorted(disputed.items(), key=lambda item: item[0].label):
        by_rank = calls[group, sequence]
        (most, count), *others = Counter(_kinds_of_ranks(by_rank).values()).most_common()
        where = f"collective {sequence} of group {group.label}"
        told = "; ".join(
            f"{ranks_text(r for r, kind in _kinds_of_ranks(by_rank).items() if kind == one)}: {one}"
            for one in [most, *(kind for kind, _ in others)]
        )
        if count * 2 <= len(by_rank):
            reasons.append(f"{where} differs between ranks, none of them the most: {told}")
            continue
        wrong = [r for r, kind in _kinds_of_ranks(by_rank).items() if kind != most]
        roots.update(wrong)
        groups.append(StuckGroup(group.label, most.partition(" ")[0], sequence, sorted(wrong)))
        reasons.append(f"{where} differs between ranks: {told}")
    return Diagnosis("rank" if roots else "unknown", sorted(roots), groups, [], reasons)


def _kinds(by_rank: Mapping[int, Sequence[Operation]]) -> set[str]:
    return set(_kinds_of_ranks(by_rank).values())


def _kinds_of_ranks(by_rank: Mapping[int, Sequence[Operation]]) -> dict[int, str]:
    return {rank: ", ".join(map(_kind, operations)) for rank, operations in by_rank.items()}


def _kind(operation: Operation) -> str:
    if operation.name not in _SAME_SIZES:
        return operation.name
    return f"{operation.name} {operation.sizes} {'/'.join(operation.dtypes)}".rstrip()


# Who never joined.


def _never_joined(dumps: Dumps, progress: Progress) -> Diagnosis | None:
    edges = waits(dumps, progress)
    certain = [edge for edge in edges if edge.grade != "possible"]
    guesses, thin = _about_the_silent(dumps, edges)
    roots, circles = _roots(certain)
    # A rank that is behind may itself wait for one that left no dump, unless its open operations
    # mean nothing because its watchdog stood still.
    sick = progress.lagging()
    excused = {rank for rank in roots if rank in guesses or rank in thin} - sick
    proven = roots - excused
    used = [] if proven else _fewest(dumps, guesses, certain)
    if found := proven or {edge.missing for edge in used}:
        used = certain + used
        groups = _stuck_groups(used, found)
        return Diagnosis("rank", sorted(found), groups, [], _chains(dumps, used, found, sick))
    if circles:
        told = [
            f"{ranks_text(circle)} wait for each other, each in another operation: their order "
            "differs, and the dumps do not say which one is right"
            for circle in circles
        ]
        return Diagnosis("unknown", [], _stuck_groups(certain, circles[0]), [], told)
    if thin:
        return Diagnosis("unknown", [], [], [], sorted(set(thin.values())))
    return None


def _about_the_silent(
    dumps: Dumps, edges: Iterable[Wait]
) -> tuple[dict[int, list[Wait]], dict[int, str]]:
    """Return waits for ranks without a dump, by waiter, and why some of them say nothing."""
    guesses: dict[int, list[Wait]] = defaultdict(list)
    thin: dict[int, str] = {}
    for edge in edges:
        if edge.grade != "possible":
            continue
        group = edge.operation.group
        gone = [rank for rank in group.members if rank in dumps.silent]
        if edge.missing not in dumps.silent:
            thin[edge.waiter] = (
                f"the ring of rank {edge.missing} begins after {edge.operation.name} "
                f"{edge.operation.sequence} of group {group.label}"
            )
            continue
        if len(gone) * 2 < len(group.members) or edge.operation.p2p or len(group.members) == 2:
            guesses[edge.waiter].append(edge)
        else:
            thin[edge.waiter] = (
                f"{len(gone)} of the {len(group.members)} ranks of group {group.label} left no "
                "evidence: whether they joined cannot be told"
            )
    return guesses, thin


def _fewest(dumps: Dumps, guesses: Mapping[int, list[Wait]], certain: Sequence[Wait]) -> list[Wait]:
    """Return the waits for silent ranks that together explain everybody who has one.

    The operation that explains most, of several the oldest, goes first with all who are silent in
    it. Who waits for one of its waiters, or has a send or receive open with one, needs no silent
    rank of its own.
    """
    before: dict[int, set[int]] = defaultdict(set)
    for edge in certain:
        before[edge.missing].add(edge.waiter)
    for rank, dump in dumps.by_rank.items():
        for operation in dump.operations:
            if operation.peer is not None and not operation.finished:
                before[operation.peer].add(rank)
    by_operation: dict[tuple[Group, int], list[Wait]] = defaultdict(list)
    for edges in guesses.values():
        for edge in edges:
            by_operation[edge.operation.group, edge.operation.sequence].append(edge)
    explains = {
        key: reachable({edge.waiter for edge in edges}, before)
        for key, edges in by_operation.items()
    }
    left = set(guesses)
    used: list[Wait] = []
    while left:
        key = min(explains, key=lambda key: (-len(explains[key] & left), _since(by_operation[key])))
        left -= explains[key]
        used += by_operation[key]
    return used


def _since(edges: Iterable[Wait]) -> int:
    return min(edge.operation.created_ns for edge in edges)


def _roots(edges: Sequence[Wait]) -> tuple[set[int], list[frozenset[int]]]:
    """Return ranks that chains end at, and circles that they end in."""
    last = ends(edges)
    roots = {rank for end in last if len(end) == 1 for rank in end}
    circles = []
    for circle in (end for end in last if len(end) > 1):
        proven = [
            edge
            for edge in edges
            if edge.grade == "proven" and edge.waiter in circle and edge.missing in circle
        ]
        inner = [end for end in ends(proven) if len(end) == 1]
        if inner:
            roots.update(rank for end in inner for rank in end)
        else:
            circles.append(circle)
    return roots, circles


def _stuck_groups(edges: Iterable[Wait], roots: Iterable[int]) -> list[StuckGroup]:
    """Return, per group that a root is missing in, the first operation it never joined."""
    wanted = set(roots)
    first: dict[tuple[Group, str], Operation] = {}
    missing: dict[tuple[Group, str], set[int]] = defaultdict(set)
    for edge in edges:
        if edge.missing not in wanted:
            continue
        operation = edge.operation
        key = (operation.group, operation.name if operation.p2p else "")
        if key not in first or operation.sequence < first[key].sequence:
            first[key] = operation
        missing[key].add(edge.missing)
    return [
        StuckGroup(key[0].label, operation.name, operation.sequence, sorted(missing[key]))
        for key, operation in sorted(first.items(), key=lambda item: _age(item[1]))
    ]


def _age(operation: Operation) -> tuple[bool, int, str, int]:
    return (operation.p2p, operation.created_ns, operation.group.name, operation.sequence)


def _chains(dumps: Dumps, edges: Sequence[Wait], roots: set[int], sick: set[int]) -> list[str]:
    reasons: list[str] = []
    for root in sorted(roots):
        direct = sorted({edge.waiter for edge in edges if edge.missing == root})
        first = min(
            (edge.operation for edge in edges if edge.missing == root),
            key=_age,
        )
        where = f"{first.name} {first.sequence} of group {first.group.label}"
        if root in dumps.silent:
            reasons.append(
                f"rank {root} left no evidence, and every other rank of the group joined {where}; "
                f"{ranks_text(direct)} {_wait(direct)} there"
            )
            continue
        reasons.append(
            f"rank {root} never joined {where}; {ranks_text(direct)} {_wait(direct)} for it"
        )
        if not any(not o.finished for o in dumps.by_rank[root].operations):
            reasons.append(f"rank {root} has nothing enqueued: it stood still outside collectives")
    through = sorted(
        {edge.waiter for edge in edges} - roots - {e.waiter for e in edges if e.missing in roots}
    )
    if through:
        reasons.append(f"{ranks_text(through)} {_wait(through)} for ranks that wait themselves")
    if late := sorted(sick - roots):
        reasons.append(
            f"{ranks_text(late)} did not note as finished what others finished: their watchdog or "
            "device stood still, too"
        )
    return reasons


def _wait(ranks: Sequence[int]) -> str:
    return "wait" if len(ranks) > 1 else "waits"
