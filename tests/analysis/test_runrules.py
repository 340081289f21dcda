"""Verdicts on runs: replayed faults of every kind, live ones, cases from bug reports."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from support.episodes import lockstep, record, recorded_records, recorded_table
from tailwatch.analysis.canary import EXPECTED
from tailwatch.analysis.diagnosis import Diagnosis
from tailwatch.analysis.episodes import Fault, FaultKind, lost, replay
from tailwatch.analysis.runrules import diagnose_records
from tailwatch.analysis.steptable import StepTable
from tailwatch.records import StepRecord

FAULTS: list[FaultKind] = [kind for kind in EXPECTED if kind != "none"]


@pytest.fixture(scope="module")
def quiet() -> StepTable:
    """A recorded healthy run of 4 ranks."""
    return recorded_table("quiet-4")


def accused(found: Diagnosis) -> set[int]:
    """The ranks named by a diagnosis."""
    return {worker.rank for worker in found.workers}


@pytest.mark.parametrize("size", [0.3, 3.0])
@pytest.mark.parametrize("kind", FAULTS)
def test_fault_is_named_with_its_ranks_and_onset(
    quiet: StepTable, kind: FaultKind, size: float
) -> None:
    """Every kind of fault is found with cause, exactly the guilty ranks, and its first step."""
    fault = Fault(kind=kind, size=size, onset=150, rank=3, peer=1)
    made = replay(quiet, fault, steps=300, seed=7, cv=0.01)
    found = diagnose_records(made.records)
    assert (found.verdict, accused(found)) == (EXPECTED[kind], set(made.guilty))
    assert found.onset_step is not None
    assert made.first_step is not None
    assert abs(found.onset_step - made.first_step) <= 3
    assert found.slowdown is not None
    # Where time is not told apart (backward passes), less than all of it is found.
    assert 1 + 0.3 * size < found.slowdown < 1 + 1.5 * size
    assert found.confidence is not None
    assert found.confidence > 0.5
    assert found.explained_share is not None
    assert found.explained_share > 0.25
    assert found.gpu_hours_lost is not None
    assert found.gpu_hours_lost > 0


@pytest.mark.parametrize("cv", [0.01, None])
@pytest.mark.parametrize("name", ["quiet-4", "quiet-2", "busy-4"])
def test_healthy_episodes_accuse_nobody(name: str, cv: float | None) -> None:
    """Eight healthy episodes of each recorded run, steady and as recorded, name no cause."""
    base = recorded_table(name)
    for seed in range(100, 108):
        found = diagnose_records(
            replay(base, Fault(kind="none"), steps=300, seed=seed, cv=cv).records
        )
        assert found.verdict in ("none", "unknown"), found
        assert found.workers == []


@pytest.mark.parametrize("name", ["quiet-4", "quiet-2", "busy-4"])
def test_recorded_healthy_runs_accuse_nobody(name: str) -> None:
    """The healthy runs themselves, as their node agents left them, name no cause."""
    assert diagnose_records(recorded_records(name)).verdict == "none"


@pytest.mark.parametrize(
    ("name", "rank", "ordered"),
    [("live-rank2-300ms", 2, 180), ("live-rank0-150ms", 0, 120), ("live-rank3-500ms", 3, 150)],
)
def test_live_delay_is_named(name: str, rank: int, ordered: int) -> None:
    """A delay that was ordered in a live run is named: rank, dense compute, within five steps."""
    found = diagnose_records(recorded_records(name))
    assert (found.verdict, accused(found)) == ("worker", {rank})
    assert [worker.phase for worker in found.workers] == ["dense"]
    assert found.onset_step is not None
    assert 0 <= found.onset_step - ordered <= 5


def test_fault_from_the_first_step_is_named_by_its_peers(quiet: StepTable) -> None:
    """Without a healthy past a slow rank is found by its peers, and the onset is not made up."""
    fault = Fault(kind="compute", size=0.3, onset=0, rank=1)
    found = diagnose_records(replay(quiet, fault, steps=200, seed=3, cv=0.01).records)
    assert (found.verdict, accused(found), found.onset_step) == ("worker", {1}, None)


def test_fault_soon_after_the_start_has_its_onset(quiet: StepTable) -> None:
    """A fault that begins before there is enough of a past is dated all the same, by the peers."""
    fault = Fault(kind="compute", size=0.5, onset=20, rank=1)
    found = diagnose_records(replay(quiet, fault, steps=200, seed=3, cv=0.01).records)
    assert (found.verdict, accused(found)) == ("worker", {1})
    assert found.onset_step is not None
    assert abs(found.onset_step - 21) <= 3


def test_lost_records_turn_no_verdict(quiet: StepTable) -> None:
    """5 % lost records change neither a healthy verdict nor a faulty one."""
    for kind in ("none", "compute", "link", "data"):
        fault = Fault(kind=kind, size=0.5, onset=150, rank=2, peer=0)
        made = replay(quiet, fault, steps=300, seed=11, cv=0.01)
        found = diagnose_records(lost(made.records, 0.05, seed=5))
        assert (found.verdict, accused(found)) == (EXPECTED[kind], set(made.guilty))


def test_went_away_is_told(quiet: StepTable) -> None:
    """A fault that ended is still named, with the step after which it was gone."""
    fault = Fault(kind="compute", size=1.0, onset=0, rank=2)
    ill = replay(quiet, fault, steps=100, seed=1, cv=0.01).records
    well = replay(quiet, Fault(kind="none"), steps=200, seed=2, cv=0.01).records
    late = [_moved(entry, 100) for entry in ill] + [_moved(entry, 200) for entry in well]
    early = [entry for entry in well if entry.step <= 100]
    found = diagnose_records(early + late)
    assert (found.verdict, accused(found), found.onset_step) == ("worker", {2}, 101)
    assert any("went away after step 200" in reason for reason in found.reasons)


def _moved(entry: StepRecord, by: int) -> StepRecord:
    return msgspec.structs.replace(entry, step=entry.step + by)


def test_inherited_delay_is_not_blamed_on_victims(quiet: StepTable) -> None:
    """A rank that is late because it waited for another is not accused beside it."""
    fault = Fault(kind="compute", size=3.0, onset=100, rank=0)
    for seed in range(5):
        found = diagnose_records(replay(quiet, fault, steps=200, seed=seed).records)
        assert accused(found) == {0}


@pytest.mark.parametrize(
    ("seconds", "ranks"),
    [
        ([9.98, 10.12, 9.46, 9.40, 9.17, 9.58], set()),
        ([129.54 / 129.44, 1.0, 1.0, 1.0], set()),
        ([100, 101, 99, 100, 100, 100, 100, 112], {7}),
        ([100.0] * 8, set()),
    ],
    ids=["spread of 1.10", "spread of 0.08 %", "one of 12 %", "no spread"],
)
def test_spread_alone_is_no_straggler(seconds: list[float], ranks: set[int]) -> None:
    """In a set of ranks one is always the slowest: it takes more than 10 % over its peers."""
    found = diagnose_records(lockstep([s / 1000 for s in seconds], 60, "optimizer"))
    assert accused(found) == ranks
    assert found.verdict == ("worker" if ranks else "none")


def test_half_of_the_ranks_without_tokens_is_a_load() -> None:
    """Tokens 8 0 8 0 ...: ranks are slow by what they are given, and a placement is proposed."""
    tokens = [8, 0] * 8
    seconds = [0.02 + 0.01 * t for t in tokens]
    experts = [[t] for t in tokens]
    found = diagnose_records(
        lockstep(seconds, 60, "ep_experts", expert_tokens=experts, first_expert=list(range(16)))
    )
    assert found.verdict == "expert_load"


def test_slow_chip_with_three_times_the_tokens_is_a_load() -> None:
    """Time follows tokens: the rank with 2.92 times the load is not called slow hardware."""
    load = [2560, 2200, 7468, 1900, 2300, 1500, 1352, 1200]
    experts = [[t // 4 + 7 * i for i in range(4)] for t in load]
    places = [4 * rank for rank in range(8)]
    seconds = [0.001 + 2e-5 * sum(held) for held in experts]
    found = diagnose_records(
        lockstep(seconds, 60, "ep_experts", expert_tokens=experts, first_expert=places)
    )
    assert (found.verdict, accused(found)) == ("expert_load", {2})
    assert found.placement is not None
    assert found.placement.load_max_ratio > 2.5
    assert found.placement.proposed_load_max_ratio < 1.8
    assert found.placement.p99_s is not None
    assert found.placement.proposed_p99_s is not None
    assert found.placement.proposed_p99_s < found.placement.p99_s


def test_slow_chip_with_the_same_tokens_is_hardware() -> None:
    """Equal loads and one rank that takes twice as long a token: a worker."""
    seconds = [0.05] * 7 + [0.1]
    experts = [[500, 500]] * 8
    places = [2 * rank for rank in range(8)]
    found = diagnose_records(
        lockstep(seconds, 60, "ep_experts", expert_tokens=experts, first_expert=places)
    )
    assert (found.verdict, accused(found)) == ("worker", {7})


def test_slow_rank_that_nobody_waits_for_is_not_accused() -> None:
    """Own time above that of the peers without any lateness is contradictory evidence."""
    records = lockstep([0.1, 0.1, 0.1, 0.2], 60, "forward_backward")
    for entry in records:
        entry.waits_ns = {"dp": 50_000_000 if entry.rank == 3 else 1_000_000}
    assert diagnose_records(records).verdict != "worker"


@pytest.mark.parametrize(
    ("world", "steps", "reason"),
    [(1, 60, "one rank"), (4, 5, "5 comparable steps"), (4, 0, "no comparable step")],
)
def test_absent_evidence_is_unknown(world: int, steps: int, reason: str) -> None:
    """One rank, too few steps or none: unknown with the reason, never a worker."""
    records = [record(s, r, world) for s in range(1, steps + 1) for r in range(world)]
    found = diagnose_records(records)
    assert found.verdict == "unknown"
    assert reason in found.reasons[0]
    assert found.exit_code == 3


def test_slow_steps_without_a_cause_are_unknown() -> None:
    """Steps that take twice as long for nothing in the records are not called healthy."""
    records = [
        record(s, r, 4, duration_ns=100_000_000 if s < 100 else 200_000_000)
        for s in range(1, 200)
        for r in range(4)
    ]
    found = diagnose_records(records)
    assert found.verdict == "unknown"
    assert "2.00 times as long" in found.reasons[0]


def test_idle_time_goes_to_what_was_waited_for(quiet: StepTable) -> None:
    """With slow rollouts on one rank, most of the trainer's idle time is put down to rollout."""
    fault = Fault(kind="rollout", size=1.0, onset=20, rank=1)
    found = diagnose_records(replay(quiet, fault, steps=200, seed=1, cv=0.01).records)
    idle = found.idle_s["trainer"]
    assert idle["rollout"] > 0.8 * sum(idle.values())


def test_micro_stalls_are_counted_by_phase() -> None:
    """Seven steps of one rank whose optimizer takes ten times as long count as seven."""
    records = [
        record(
            s,
            r,
            4,
            phases_ns={
                "forward_backward": 80_000_000,
                "optimizer": 100_000_000 if r == 2 and s % 20 == 7 else 10_000_000,
            },
        )
        for s in range(1, 141)
        for r in range(4)
    ]
    assert diagnose_records(records).micro_stalls == {"optimizer": 7}


def test_all_orders_of_ranks_give_the_same_verdict(quiet: StepTable) -> None:
    """The order in which records arrive does not matter."""
    fault = Fault(kind="steal", size=0.5, onset=120, rank=0)
    records = replay(quiet, fault, steps=200, seed=4, cv=0.01).records
    shuffled = list(records)
    np.random.default_rng(1).shuffle(shuffled)
    assert diagnose_records(shuffled) == diagnose_records(records)
