"""What a diagnosis comes to: the verdict, who, since when, how much of it, and how sure.

Contract: the JSON of `tailwatch diagnose`. `workers` names ranks only where the verdict is about
ranks; it is empty for `stage`, `sequence_length`, `whole_job`, `none` and `unknown`. What is not
known is null, with the reason in `reasons`. Seconds, ratios (1.0 is nothing), and shares of 0 to 1.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import msgspec

Verdict = Literal[
    "worker",
    "stage",
    "sequence_length",
    "expert_load",
    "link",
    "gc",
    "data_loader",
    "checkpoint",
    "whole_job",
    "none",
    "unknown",
]

EXIT_CODES: dict[str, int] = {"none": 0, "unknown": 3}
"""Exit status by verdict; every other verdict names a cause and ends with 1."""


class Worker(msgspec.Struct, kw_only=True, frozen=True):
    """A rank the verdict is about; `ratio` is its time in `phase` over that of its peers."""

    rank: int
    dp_rank: int | None
    stage: int | None
    node: str | None
    phase: str
    ratio: float


class Placement(msgspec.Struct, kw_only=True, frozen=True):
    """Where experts should lie: `ranks[r]` lists the experts rank r should hold.

    `load_max_ratio` is the load of the busiest rank over the mean, as it is and as proposed;
    `p99_s` the step time p99 as it was and as predicted for the proposed placement.
    """

    ranks: list[list[int]]
    load_max_ratio: float
    proposed_load_max_ratio: float
    p99_s: float | None
    proposed_p99_s: float | None


class Diagnosis(msgspec.Struct, kw_only=True, frozen=True):
    """The diagnosis of one run or trace.

    `slowdown` is the step time over that without the cause or, for a trace, over that of a job in
    which all equal operations take equally long. `onset_step` is the first step that shows the
    cause; null when it was there from the first step on. `what_if` holds step times and slowdowns
    with parts of the job idealised. Of runs alone: `micro_stalls` counts by phase, `idle_s` seconds
    by side and cause, `placement` for `expert_load`.
    """

    verdict: Verdict
    slowdown: float | None = None
    workers: list[Worker] = []
    onset_step: int | None = None
    explained_share: float | None = None
    confidence: float | None = None
    gpu_hours_lost: float | None = None
    what_if: dict[str, float] = {}
    placement: Placement | None = None
    micro_stalls: dict[str, int] = {}
    idle_s: dict[str, dict[str, float]] = {}
    reasons: list[str] = []

    @property
    def exit_code(self) -> int:
        """0: no cause to name, 1: a cause is named, 3: unknown."""
        return EXIT_CODES.get(self.verdict, 1)


def to_json(diagnosis: Diagnosis) -> str:
    """Return one JSON object; what runs alone have is left out where it is empty."""
    found = msgspec.to_builtins(diagnosis)
    for name in ("placement", "micro_stalls", "idle_s"):
        if not found[name]:
            del found[name]
    return msgspec.json.encode(found).decode()


def lower_share(hits: int, trials: int) -> float:
    """Return the one-sided 95 % lower bound of a share (Wilson), 0 without trials."""
    if trials == 0:
        return 0.0
    share, z = hits / trials, NormalDist().inv_cdf(0.95)
    spread = z * math.sqrt((share * (1 - share) + z * z / (4 * trials)) / trials)
    lower = (share + z * z / (2 * trials) - spread) / (1 + z * z / trials)
    return max(0.0, lower)
