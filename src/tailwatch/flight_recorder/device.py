"""When everybody joined and it still stands: the network, or a device that stopped.

Contract: without a rank that is behind, `all_joined` calls it the network. A rank is named only
where its watchdog noted the end of two operations less than another rank's of the same group did
(the other could not have finished the second without this one), or where start times were recorded
and a minority never started what the others did.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tailwatch.flight_recorder.model import Dumps, Group, Operation
from tailwatch.flight_recorder.progress import Progress
from tailwatch.flight_recorder.report import Diagnosis, StuckGroup, ranks_text


def all_joined(dumps: Dumps, progress: Progress) -> Diagnosis:
    """Return the verdict on a hang that no rank kept away from."""
    behind_others = progress.lagging()
    heads = _oldest(dumps)
    if behind_others:
        groups = [
            StuckGroup(o.group.label, o.name, o.sequence, [rank])
            for rank in sorted(behind_others)
            if (o := heads.get(rank)) is not None
        ]
        return Diagnosis(
            "rank", sorted(behind_others), groups, [],
            [
                f"{ranks_text(behind_others)} joined everything and did not finish what others "
                "finished operations ago: the device or the watchdog there stands still"
            ],
        )  # fmt: skip
    shared: dict[tuple[Group, str, int], list[int]] = defaultdict(list)
    for rank, operation in heads.items():
        name = operation.name if not operation.p2p else "send/recv"
        shared[operation.group, name, 0 if operation.p2p else operation.sequence].append(rank)
    groups = []
    for (group, name, sequence), ranks in sorted(
        shared.items(), key=lambda item: (item[0][0].label, *item[0][1:])
    ):
        behind = _not_started(dumps, heads, ranks)
        if behind and len(behind) * 2 < len(ranks):
            return Diagnosis(
                "rank", behind, [StuckGroup(group.label, name, sequence, behind)], [],
                [
                    f"all joined {name} {sequence} of group {group.label}, and the device of "
                    f"{ranks_text(behind)} never started it while the others did"
                ],
            )  # fmt: skip
        groups.append(StuckGroup(group.label, name, sequence, []))
    if all(len(operation.group.members) < 2 for operation in heads.values()):
        return Diagnosis("unknown", [], groups, [], ["a group of one rank waits for nobody"])
    told = ", ".join(f"{g.operation} {g.sequence} of group {g.name}" for g in groups[:3])
    return Diagnosis(
        "network", [], groups, [],
        [f"all ranks joined and none finished: {told}; look at links and NICs below them"],
    )  # fmt: skip


def _oldest(dumps: Dumps) -> dict[int, Operation]:
    """Return for each rank the operation that everything else of it stands behind."""
    return {
        rank: next(o for o in dump.operations if not o.finished)
        for rank, dump in dumps.by_rank.items()
        if any(not o.finished for o in dump.operations)
    }


def _not_started(dumps: Dumps, heads: Mapping[int, Operation], ranks: Sequence[int]) -> list[int]:
    if not all(dumps.by_rank[rank].timed for rank in ranks):
        return []
    return sorted(rank for rank in ranks if not heads[rank].started)
