"""What `tailwatch hang` says: the form of a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Verdict = Literal["rank", "network", "none", "unknown"]


class StuckGroup(msgspec.Struct, frozen=True):
    """The first operation of a group that the missing ranks never joined."""

    name: str
    operation: str
    sequence: int
    missing_ranks: list[int]


class Diagnosis(msgspec.Struct, frozen=True):
    """What `tailwatch hang` prints."""

    verdict: Verdict
    root_ranks: list[int]
    groups: list[StuckGroup]
    victims: list[int]
    reasons: list[str]


def ranks_text(ranks: Iterable[int]) -> str:
    """Write ranks as people do: `rank 3`, `ranks 0-3, 7`."""
    listed = sorted(set(ranks))
    spans: list[list[int]] = []
    for rank in listed:
        if spans and spans[-1][-1] == rank - 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    text = ", ".join(f"{s[0]}-{s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)
    return f"rank{'s' if len(listed) > 1 else ''} {text}"
