"""A known fault, put before the rules at any time: do they still see what they should?

Contract: made-up steps of four ranks on two nodes, once healthy, once for each kind of fault that
accuses a rank; `run_canary` says of each what came out and what should have. No file and no random
seed from outside, so the same version always answers the same.

Cost: about half a second.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailwatch.analysis.diagnosis import Verdict
from tailwatch.analysis.episodes import Fault, FaultKind, replay
from tailwatch.analysis.runrules import diagnose_records
from tailwatch.analysis.steptable import StepTable, Values
from tailwatch.records import CHILDREN, PHASES

EXPECTED: dict[FaultKind, Verdict] = {
    "none": "none",
    "compute": "worker",
    "rollout": "worker",
    "steal": "worker",
    "link": "link",
    "experts": "expert_load",
    "sequences": "sequence_length",
    "gc": "gc",
    "data": "data_loader",
    "checkpoint": "checkpoint",
    "whole_job": "whole_job",
}
"""The verdict each kind of fault must lead to."""

_STEPS = 160
_ONSET = 90


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules made of one known fault."""

    fault: FaultKind
    expected: Verdict
    found: Verdict
    expected_ranks: list[int]
    found_ranks: list[int]

    @property
    def passed(self) -> bool:
        """Whether cause and ranks are right."""
        return (self.found, self.found_ranks) == (self.expected, self.expected_ranks)


def run_canary() -> list[CanaryResult]:
    """Return the result for each kind of fault."""
    base = _base()
    results = []
    for seed, (kind, expected) in enumerate(EXPECTED.items()):
        fault = Fault(kind=kind, size=0.5, onset=_ONSET, rank=2, peer=1)
        episode = replay(base, fault, steps=_STEPS, seed=seed, cv=0.01)
        found = diagnose_records(episode.records)
        results.append(
            CanaryResult(
                fault=kind,
                expected=expected,
                found=found.verdict,
                expected_ranks=sorted(episode.guilty),
                found_ranks=sorted(worker.rank for worker in found.workers),
            )
        )
    return results


def _base() -> StepTable:
    """Return steps as a quiet machine would record them: 1 % of noise, two updates an iteration."""
    steps, ranks, experts = 120, 4, 8
    noise = np.random.default_rng(20261201)
    first = np.arange(steps)[:, None] % 2 == 0

    def seconds(usual: float, where: NDArray[np.bool_]) -> Values:
        return np.where(where, usual * noise.normal(1.0, 0.01, (steps, ranks)), 0.0)

    always = np.ones_like(first)
    saved = np.arange(steps)[:, None] % 40 == 39
    phases = {name: np.zeros((steps, ranks)) for name in PHASES}
    children = {name: seconds(0.005, always) for name in CHILDREN}
    for name, usual, where in (
        ("data", 0.001, first),
        ("rollout_generate", 0.06, first),
        ("reward", 0.001, first),
        ("advantage", 0.004, first),
        ("weight_sync", 0.004, first),
        ("forward_backward", 0.08, always),
        ("grad_sync", 0.006, always),
        ("optimizer", 0.002, always),
        ("checkpoint", 0.1, saved),
    ):
        phases[name] = seconds(usual, where)
    tokens = np.rint(noise.normal(1000, 20, (steps, ranks)))
    return StepTable(
        run="canary",
        configuration="canary/ep4",
        attempt=np.ones(steps, dtype=np.int64),
        step=np.arange(1, steps + 1),
        kind=np.arange(steps) % 2,
        nodes=["node-0", "node-0", "node-1", "node-1"],
        role="policy",
        duration=np.sum(list(phases.values()), axis=0),
        phases=phases,
        children=children,
        waits={"dp": seconds(0.005, always), "ep": seconds(0.004, always)},
        tokens=tokens,
        squares=tokens**2 / 100,
        rows=2 * tokens,
        expert_tokens=tokens,
        experts=np.repeat(tokens / 2, experts // ranks, axis=1),
        owners=np.repeat(np.arange(ranks), experts // ranks),
    )
