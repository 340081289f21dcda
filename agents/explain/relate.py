"""What incidents say about each other: which are echoes of which, and which rank is behind.

Contract: changes roles, never drops an incident. A process that the launcher found ended is the
echo of what its own rank said before; a kill is the echo of the kernel's out-of-memory report; a
rank far behind the others in one group is the cause and not the victim of their time-outs.
"""

from __future__ import annotations

from collections import defaultdict

from tailwatch.agents.explain.collect import Found

_COMMUNICATION = frozenset(
    {
        "peer_gone", "peer_refused", "collective_timeout", "watchdog_noticed", "watchdog_exception",
        "nccl_remote_error", "nccl_internal_error", "nccl_system_error", "gloo_timeout",
        "gloo_connect_failed", "store_unreachable", "taking_process_down", "rendezvous_closed",
    }
)  # fmt: skip

_WATCHDOG = frozenset(
    {
        "collective_timeout", "watchdog_noticed", "watchdog_exception", "watchdog_stuck",
        "rank_did_not_join", "rank_behind",
    }
)  # fmt: skip


def relate(found: list[Found]) -> list[Found]:
    """Return the incidents with their roles settled, and one more for a rank that kept silent."""
    _ends_follow_their_ranks(found)
    _kills_follow_memory(found)
    _aborts_follow_watchdogs(found)
    found += _behind(found)
    _hosts_that_many_name(found)
    return found


def _ends_follow_their_ranks(found: list[Found]) -> None:
    said: dict[int, list[Found]] = defaultdict(list)
    for one in found:
        if one.rank is not None and "exit" not in one.fields and one.role != "noise":
            said[one.rank].append(one)
    for one in found:
        if "exit" not in one.fields or one.role != "cause" or one.rank not in said:
            continue
        own = said[one.rank]
        causes = [other.depth for other in own if other.role == "cause"]
        noticed = any(other.kind in _COMMUNICATION for other in own)
        if one.kind == "process_failed":
            told = bool(causes) or noticed
        else:
            told = max(causes, default=0) > one.depth
        if told:
            _to_echo(one, "its own lines say why")


def _kills_follow_memory(found: list[Found]) -> None:
    for kind, end, why in (
        ("oom_killed", "killed", "the kernel says that memory was full"),
        ("process_crashed", "crashed", "the kernel says where"),
        ("nccl_segfault", "crashed", "the kernel says where"),
    ):
        reports = [one for one in found if one.kind == kind]
        if not reports:
            continue
        # Inside a container a process has another number than the kernel writes.
        for one in found:
            if one.kind == end and one.role == "cause":
                _to_echo(one, why)


def _aborts_follow_watchdogs(found: list[Found]) -> None:
    if any(one.kind in _WATCHDOG for one in found):
        for one in found:
            if one.kind == "aborted" and one.role == "cause":
                _to_echo(one, "a watchdog spoke before it")


def _to_echo(one: Found, why: str) -> None:
    one.role = "echo"
    one.depth = 0
    one.meaning = f"{one.meaning}; {why}"


def _behind(found: list[Found]) -> list[Found]:
    """Find the rank whose sequence number lies far behind, or that alone said nothing."""
    timeouts: dict[str, dict[int, tuple[int, Found]]] = defaultdict(dict)
    for one in found:
        if one.kind in ("collective_timeout", "watchdog_noticed") and one.rank is not None:
            sequence = one.fields.get("completed") or one.fields.get("sequence")
            if sequence and int(sequence) >= 0:
                group = str(one.fields.get("group", "0"))
                key = f"{one.kind} {group if one.kind == 'watchdog_noticed' else ''}"
                timeouts[key][one.rank] = (int(sequence), one)
    if any(one.kind == "rank_did_not_join" for one in found):
        return []
    for by_rank in timeouts.values():
        ordered = sorted((sequence, rank) for rank, (sequence, _) in by_rank.items())
        if len(ordered) < 2:
            continue
        (lowest, rank), (second, _) = ordered[:2]
        if lowest < second:
            one = by_rank[rank][1]
            one.role, one.depth, one.kind = "cause", 55, "rank_behind"
            one.action = "look_at_this_rank"
            one.meaning = (
                f"The rank stands at collective {lowest}, the next one at {second}: the others "
                "wait for it"
            )
            return []
        silent = set(range(ordered[-1][1] + 1)) - {one.rank for one in found}
        if silent and len(silent) * 2 < len(by_rank):
            return [_silent(sorted(silent), by_rank)]
    return []


def _silent(ranks: list[int], by_rank: dict[int, tuple[int, Found]]) -> Found:
    listed = ", ".join(map(str, ranks))
    return Found(
        kind="rank_silent",
        role="cause",
        severity="fatal",
        subject=f"rank{'s' if len(ranks) > 1 else ''} {listed}",
        action="look_at_this_rank",
        meaning=f"{len(by_rank)} ranks waited in one collective; only this one said nothing",
        depth=52,
        first_line=min(one.first_line for _, one in by_rank.values()),
        lines=[],
        rank=ranks[0] if len(ranks) == 1 else None,
    )


def _hosts_that_many_name(found: list[Found]) -> None:
    """Let the host that names many peers, and is itself named by none, be the suspect."""
    names: dict[str, set[str]] = defaultdict(set)
    for one in found:
        if one.kind.startswith("efa_") and "from" in one.fields:
            names[str(one.fields["from"])].add(str(one.fields["peer"]))
    for host, peers in names.items():
        if len(peers) > 2 and len(names) == 1:
            for one in found:
                if one.fields.get("from") == host and one.role == "echo":
                    one.points = 0
                    one.meaning += f"; {host} says so of {len(peers)} peers: look at {host} itself"
