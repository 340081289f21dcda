"""The dumps of a job, one per rank, checked against each other and with every state settled.

Contract: files of different versions, jobs or attempts in one directory are refused. NCCL notes the
end of an operation as its state, gloo only retires the entry, and an operation inside a coalesced
group has no state of its own: all three come out as `Operation.finished`.

Cost: linear in entries; 16,384 dumps of 2,000 entries are a matter of minutes and gigabytes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tailwatch.errors import UsageError
from tailwatch.flight_recorder.files import MOST_RANKS, Entry, RawDump, read_files
from tailwatch.flight_recorder.model import Dump, Dumps, Group, Operation, Position

_PEERS = re.compile(r"\b(?P<way>send|recv) (?P<a>\d+)(?:->|<-)(?P<b>\d+)")


def read(path: Path) -> Dumps:
    """Return the dumps of a directory, or of one file that holds several ranks.

    Raises:
        UsageError: there is none, one cannot be read, or they are not of one hang of one job.
    """
    raw, empty = read_files(path)
    if not raw:
        if empty:
            return Dumps({}, frozenset(empty), frozenset(empty))
        raise UsageError("no dump in it; expected files such as _dump_0, _dump_1", source=path)
    _same_version(raw)
    world = set(empty) | {one.rank for one in raw}
    known: dict[tuple[str, str], Group] = {}
    for one in raw:
        one.groups = _groups(one, known)
    for group in known.values():
        world.update(group.members)
    _same_job(raw)
    _groups_without_config(raw, world)
    in_order = _ids_follow_names(raw)
    dumps = {one.rank: _dump(one, in_order) for one in raw}
    _same_attempt(dumps.values())
    return Dumps(dumps, frozenset(world - dumps.keys()), frozenset(empty))


def _same_version(raw: Sequence[RawDump]) -> None:
    first = raw[0]
    for one in raw:
        if one.content.version != first.content.version:
            raise UsageError(
                f"version {one.content.version}, but {Path(first.source).name} has "
                f"{first.content.version}; expected dumps of one job",
                source=one.source,
            )


def _groups(one: RawDump, known: dict[tuple[str, str], Group]) -> dict[str, Group]:
    """Return groups by name; `known` are those of other dumps, by name and ranks as written."""
    found = {}
    for name, config in one.content.pg_config.items():
        written = (name, str(config.ranks))
        if written not in known:
            known[written] = Group(name, _members(one, name, config.ranks), config.desc)
        # Gloo leaves a nameless group without ranks.
        if known[written].members:
            found[name] = known[written]
    return found


def _members(one: RawDump, name: str, written: str | list[int]) -> tuple[int, ...]:
    ranks: Any = written
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except (ValueError, RecursionError):
            ranks = None
    if not isinstance(ranks, list) or not all(
        type(rank) is int and 0 <= rank < MOST_RANKS for rank in ranks
    ):
        raise UsageError(
            f"expected ranks, got {written!r:.60}",
            source=one.source,
            place=f"pg_config.{name}.ranks",
        )
    return tuple(ranks)


def _same_job(raw: Sequence[RawDump]) -> None:
    """Refuse dumps that give one rank two groups of one name."""
    by_rank = {one.rank: one for one in raw}
    by_name: dict[str, list[Group]] = defaultdict(list)
    for group in dict.fromkeys(group for one in raw for group in one.groups.values()):
        by_name[group.name].append(group)
    for groups in by_name.values():
        for group in groups if len(groups) > 1 else ():
            for member in group.members:
                other = by_rank[member].groups.get(group.name) if member in by_rank else None
                if other is not None and other.members != group.members:
                    raise UsageError(
                        f"its group {group.label} has ranks {list(other.members)!s:.80}, in other "
                        f"dumps {list(group.members)!s:.80}; expected dumps of one job",
                        source=by_rank[member].source,
                    )


def _groups_without_config(raw: Sequence[RawDump], world: set[int]) -> None:
    """Give groups that no configuration describes the members that were seen in them."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for one in raw:
        for name, description in map(_group_of, one.content.entries):
            if name not in one.groups:
                seen[name, description].add(one.rank)
    for (name, description), ranks in seen.items():
        if description == "default_pg":
            ranks = set(range(max(world) + 1))
            world.update(ranks)
        group = Group(name, tuple(sorted(ranks)), description)
        for one in raw:
            if one.rank in ranks:
                one.groups.setdefault(name, group)


def _group_of(entry: Entry) -> tuple[str, str]:
    return entry.process_group or (str(entry.pg_id), "")


def _ids_follow_names(raw: Sequence[RawDump]) -> bool:
    """Say whether the n-th id is the n-th name wherever an entry tells both."""
    return all(
        by_order.get(entry.pg_id, entry.process_group[0]) == entry.process_group[0]
        for one in raw
        for by_order in [_names_by_order(one)]
        for entry in one.content.entries
        if entry.process_group is not None
    )


def _names_by_order(one: RawDump) -> dict[int, str]:
    ids, names = list(one.content.pg_status), list(one.content.pg_config)
    if len(ids) != len(names) or not all(text.isdecimal() for text in ids + names):
        return {}
    return dict(zip(sorted(map(int, ids)), sorted(names, key=int), strict=True))


def _dump(one: RawDump, in_order: bool) -> Dump:
    content = one.content
    names = _names_by_order(one) if in_order else {}
    names |= {entry.pg_id: _group_of(entry)[0] for entry in content.entries}
    positions = {
        one.groups[names[int(key)]]: Position(
            status.last_enqueued_collective, status.last_completed_collective
        )
        for key, status in content.pg_status.items()
        if key.isdecimal() and names.get(int(key)) in one.groups
    }
    entries = sorted(content.entries, key=lambda entry: entry.record_id)
    return Dump(
        rank=one.rank,
        version=content.version,
        groups=tuple(one.groups.values()),
        operations=tuple(_settled(one, entries)),
        positions=positions,
        first_record=max(0, entries[0].record_id) if entries else 0,
        timed=any(entry.time_discovered_started_ns for entry in entries)
        or any(status.last_started_collective > 0 for status in content.pg_status.values()),
    )


def _settled(one: RawDump, entries: Sequence[Entry]) -> Iterator[Operation]:
    operations = [_operation(one, entry) for entry in entries]
    # Within a lane (a communicator) operations finish in their order, and the parts of a coalesced
    # group, which have no state, finish with the entry that closes it.
    finished: set[object] = set()
    settled = []
    parts: set[tuple[Group, int, bool]] = set()
    closing: dict[tuple[Group, int, bool], Operation] = {}
    for operation in reversed(operations):
        together = (operation.group, operation.sequence, operation.p2p)
        if operation.coalesced:
            closing[together] = operation
        else:
            parts.add(together)
        lane = (operation.group, operation.peer if operation.p2p else None)
        whole = closing.get(together, operation)
        done = operation.finished or whole.finished or lane in finished
        if done and not (operation.coalesced and operation.p2p):
            finished.add(lane)
        settled.append(
            msgspec.structs.replace(
                operation, finished=done, started=operation.started or whole.started
            )
        )
    return (
        operation
        for operation in reversed(settled)
        if not operation.coalesced
        or (operation.group, operation.sequence, operation.p2p) not in parts
    )


def _operation(one: RawDump, entry: Entry) -> Operation:
    group = one.groups[_group_of(entry)[0]]
    name = entry.profiling_name.partition(":")[2] or entry.profiling_name
    peers = _PEERS.search(name)
    peer = None
    if peers is not None:
        local = int(peers["b"])
        if local >= len(group.members):
            raise UsageError(
                f"{name} in group {group.label} of {len(group.members)} ranks", source=one.source
            )
        peer = group.members[local]
    p2p = entry.is_p2p or peer is not None
    collective = entry.collective_seq_id if entry.collective_seq_id is not None else entry.seq_id
    return Operation(
        record=entry.record_id,
        group=group,
        sequence=entry.p2p_seq_id if p2p and entry.p2p_seq_id else collective or 0,
        collectives=collective or 0,
        name=name,
        sizes=entry.input_sizes,
        dtypes=entry.input_dtypes,
        created_ns=entry.time_created_ns,
        timeout_ms=entry.timeout_ms,
        finished=entry.state == "completed"
        or entry.retired
        or bool(entry.time_discovered_completed_ns),
        started=entry.state == "started" or bool(entry.time_discovered_started_ns),
        p2p=p2p,
        peer=peer,
        coalesced=name == "coalesced",
    )


def _same_attempt(dumps: Iterable[Dump]) -> None:
    """Refuse operations that two ranks cannot have met in."""
    seen: dict[tuple[Group, int, str], tuple[int, int]] = {}
    for dump in dumps:
        for operation in dump.operations:
            if operation.p2p or not operation.created_ns or not operation.timeout_ms:
                continue
            key = (operation.group, operation.sequence, operation.name)
            other, created = seen.setdefault(key, (dump.rank, operation.created_ns))
            apart_ms = abs(created - operation.created_ns) / 1e6
            if apart_ms > 2 * max(operation.timeout_ms, 600_000):
                raise UsageError(
                    f"ranks {other} and {dump.rank} enqueued {operation.name} "
                    f"{operation.sequence} of {operation.group.label} {apart_ms / 1000:.0f} s "
                    "apart; expected dumps of one attempt"
                )
