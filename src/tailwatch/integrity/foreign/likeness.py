"""Same bytes where they should differ: a step that is a copy of another, a rank of another rank.

Contract: training changes every shard of weights and optimizer between two steps, so a checkpoint
all of whose shards are identical to those of an older one is most likely that one under a new name;
so is a single identical shard a left-over. It may be meant (a frozen part, a finished run), so
the effect is a doubt and never a refusal. Files below `SMALL_BYTES` say nothing.

Cost: files of equal size are read side by side until they differ, which is in the first piece as a
rule.
"""

from __future__ import annotations

from itertools import pairwise

from tailwatch.integrity.foreign.findings import Judgement
from tailwatch.integrity.foreign.tree import Entry, Opened

SMALL_BYTES = 2048
_SHARDS = (".distcp", ".safetensors", ".pt", ".bin", ".ckpt")
_ALIKE_BY_NATURE = (
    "rng_state",
    "random_state",
    "scheduler",
    "scaler",
    "training_args",
    "common.pt",
)


def compare_steps(found: list[tuple[Judgement, list[Entry]]]) -> None:
    """Compare each checkpoint with the one before it, newest first; the newer is doubted."""
    for (newer, mine), (older, theirs) in pairwise(found):
        if newer.step == older.step:
            # Two names of one step: `last.ckpt` beside `step=1000.ckpt`.
            continue
        twins = {entry.name: entry for entry in _shards(theirs)}
        shards = _shards(mine)
        same = [e for e in shards if e.name in twins and _identical(e, twins[e.name])]
        if same and len(same) == len(shards) == len(twins):
            text = f"is identical to {older.name}: all of its shards hold the same bytes"
            newer.add("", "identical", f"{text}, perhaps a copy under a new name", "doubtful")
        elif same:
            names = ", ".join(entry.name for entry in same[:3])
            more = f" and {len(same) - 3} more" if len(same) > 3 else ""
            text = f"has shards identical to those of {older.name}, perhaps left over: {names}"
            newer.add("", "identical", text + more, "doubtful")


def compare_ranks(judgement: Judgement, entries: list[Entry]) -> None:
    """Look for shards of one checkpoint that hold the same bytes."""
    by_size: dict[tuple[int, str], list[Entry]] = {}
    for entry in _shards(entries):
        by_size.setdefault((entry.size, entry.base.rpartition(".")[2]), []).append(entry)
    for group in by_size.values():
        for one, other in pairwise(group):
            if _identical(one, other):
                text = f"is identical to {one.name}: two ranks should not hold the same bytes"
                judgement.add(other.name, "identical", text, "doubtful")


def _shards(entries: list[Entry]) -> list[Entry]:
    return [
        entry
        for entry in entries
        if entry.kind == "file"
        and entry.size >= SMALL_BYTES
        and entry.base.endswith(_SHARDS)
        and not any(word in entry.base for word in _ALIKE_BY_NATURE)
    ]


def _identical(one: Entry, other: Entry) -> bool:
    if one.size != other.size:
        return False
    try:
        with Opened(one.path) as mine, Opened(other.path) as theirs:
            pieces = zip(mine.chunks(0, one.size), theirs.chunks(0, other.size), strict=True)
            return all(a == b for a, b in pieces)
    except (OSError, ValueError):
        return False
