"""Saves that go on beside the training, and the tier in memory in front of the disk."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.checkpoints import (
    Events,
    blank,
    equal,
    flip,
    new_run,
    on_ranks,
    save_steps,
    state,
)
from support.procs import eventually
from tailwatch.integrity import candidates, verify
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import CheckpointStore, MemoryTier, SaveError

STAGES = [
    "checkpoint_staged",
    "checkpoint_written",
    "checkpoint_committed",
    "checkpoint_verified",
]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A fresh run directory."""
    return new_run(tmp_path / "run-a")


class Gate:
    """Holds back every fsync until it is opened; `failure` makes them fail instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.failure: OSError | None = None
        self._real = os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync)

    def _fsync(self, fd: int) -> None:
        assert self.open.wait(30)
        if self.failure is not None:
            raise self.failure
        self._real(fd)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, run: RunDirectory) -> Gate:
    """A disk that waits to be let go."""
    return Gate(monkeypatch)


def begin(store: CheckpointStore, step: int, values: dict[str, torch.Tensor]) -> None:
    """Start a save in the background."""
    store.save(values, step=step, iteration=0, attempt=1, extra={}, wait=False)


def progress(store: CheckpointStore) -> str:
    """Return how far its save has come."""
    return store.progress


def test_training_goes_on_while_a_step_is_written(run: RunDirectory, gate: Gate) -> None:
    """The call returns while the disk waits; later values of the tensors are not in the step."""
    events = Events()
    store = CheckpointStore(run, emit=events)
    values = state(5)
    begin(store, 5, values)
    assert progress(store) == "staged"
    for value in values.values():
        value.zero_()
    store.poll()
    assert [kind for kind, _, _ in events.seen] == STAGES[:1]
    gate.open.set()
    store.wait()
    assert [kind for kind, _, _ in events.seen] == STAGES
    assert progress(store) == "verified"
    assert set(events.of("checkpoint_verified")[0]["phases"]) == {
        *("stage", "write", "commit", "verify", "retain")
    }
    target = blank(state(5))
    assert store.load(target) is not None
    assert equal(target, state(5))


def test_events_are_told_in_the_thread_that_trains(run: RunDirectory, gate: Gate) -> None:
    """What the background does is told by `poll`, so that whoever takes events needs no lock."""
    threads = set()
    store = CheckpointStore(run, emit=lambda *_: threads.add(threading.current_thread()))
    begin(store, 5, state(5))
    gate.open.set()
    assert eventually(lambda: store.progress == "verified")
    assert len(threads) == 1
    store.poll()
    assert threads == {threading.current_thread()}


def test_one_save_is_in_flight_and_the_next_waits(run: RunDirectory, gate: Gate) -> None:
    """A second save begins when the first is done, in the same buffers, and both are there."""
    events = Events()
    store = CheckpointStore(run, emit=events)
    begin(store, 5, state(5))
    threading.Timer(0.3, gate.open.set).start()
    started = time.monotonic()
    begin(store, 6, state(6))
    assert time.monotonic() - started > 0.2
    store.wait()
    assert [(kind, step) for kind, step, _ in events.seen] == [
        (stage, step) for step in (5, 6) for stage in STAGES
    ]
    for step in (5, 6):
        directory = run.checkpoints / f"step-{step:08d}"
        assert verify(directory).verdict == "valid"
    target = blank(state(6))
    store.load(target)
    assert equal(target, state(6))


def test_a_failure_surfaces_at_the_next_step(run: RunDirectory, gate: Gate) -> None:
    """The disk's error is raised by the next poll, once, and the save after it works."""
    save_steps_with(gate, run)
    store = CheckpointStore(run, emit=Events())
    gate.failure = OSError(5, "Input/output error")
    begin(store, 5, state(5))
    assert eventually(lambda: store.progress == "failed")
    with pytest.raises(SaveError, match="Input/output error") as caught:
        store.poll()
    assert caught.value.reason == "input/output error"
    store.poll()
    gate.failure = None
    begin(store, 5, state(5))
    store.wait()
    assert [c.name for c in candidates(run.checkpoints)] == ["step-00000005", "step-00000003"]


def save_steps_with(gate: Gate, run: RunDirectory) -> None:
    """Save step 3 through an open gate."""
    gate.open.set()
    save_steps(run, [3])


def test_the_stall_is_small_against_the_save(run: RunDirectory, gate: Gate) -> None:
    """With a disk that takes a second, what the trainer waits is less than a third of it."""
    store = CheckpointStore(run, emit=Events())
    threading.Timer(1.0, gate.open.set).start()
    started = time.monotonic()
    begin(store, 5, state(5))
    stalled = time.monotonic() - started
    store.wait()
    assert stalled < (time.monotonic() - started) / 3


def _train_beside(rank: int, world_size: int, root: Path) -> tuple[list[str], float]:
    """Save in the background while the default group is busy; another pace on each rank."""
    events = Events()
    store = CheckpointStore(RunDirectory(root), emit=events)
    total = torch.zeros(1)
    for step in range(1, 5):
        begin(store, step, state(step, rank, world_size))
        for _ in range(20 * (rank + 1)):
            time.sleep(0.001)
        for _ in range(50):
            dist.all_reduce(one := torch.ones(1))
            total += one
        store.poll()
    store.wait()
    return [kind for kind, _, _ in events.seen], float(total)


def test_a_save_does_not_meet_the_collectives_of_training(run: RunDirectory) -> None:
    """Two ranks train and save at once, each at its own pace, and neither disturbs the other."""
    results = on_ranks(2, _train_beside, run.root)
    assert results == [(STAGES * 4, 400.0), ([], 400.0)]
    assert verify(run.checkpoints / "step-00000004").verdict == "valid"


def _fail_on_one(rank: int, world_size: int, root: Path) -> str:
    """Fail the first save on rank 1's disk; of the two only rank 1 polls before the second."""
    real = os.fsync
    store = CheckpointStore(RunDirectory(root), emit=Events())
    if rank == 1:

        def fsync(fd: int) -> None:
            raise OSError(5, "Input/output error")

        os.fsync = fsync  # type: ignore[assignment]
    begin(store, 1, state(1, rank, world_size))
    said = ""
    if rank == 1:
        try:
            store.wait()
        except SaveError as error:
            said = error.reason
    os.fsync = real
    begin(store, 2, state(2, rank, world_size))
    try:
        store.wait()
    except SaveError as error:
        said = error.reason
    return said


def test_ranks_that_learn_of_a_failure_at_different_times_stay_together(
    run: RunDirectory,
) -> None:
    """A failure known to one rank only by its poll parts nobody: the next save works on both."""
    assert on_ranks(2, _fail_on_one, run.root) == ["input/output error"] * 2
    assert [c.name for c in candidates(run.checkpoints)] == ["step-00000002"]


@pytest.fixture
def tier(run: RunDirectory, tmp_path: Path) -> MemoryTier:
    """A memory tier of the run."""
    return MemoryTier(run)


@pytest.fixture(autouse=True)
def _no_memory_left(tier: MemoryTier) -> Any:
    yield
    tier.remove()


def test_memory_holds_the_newest_step_too(run: RunDirectory, tier: MemoryTier) -> None:
    """Each step is in memory and on the disk by the same manifest; memory keeps the newest only."""
    store = CheckpointStore(run, emit=Events(), memory=tier)
    for step in (1, 2):
        store.save(state(step), step=step, iteration=0, attempt=1, extra={})
    assert [c.name for c in tier.committed()] == ["step-00000002"]
    assert [c.name for c in candidates(run.checkpoints)] == ["step-00000002", "step-00000001"]
    copies = [p / "step-00000002" / "MANIFEST.json" for p in (tier.checkpoints, run.checkpoints)]
    assert copies[0].read_bytes() == copies[1].read_bytes()
    store.close()
    assert not tier.checkpoints.exists()


def _restored(run: RunDirectory, tier: MemoryTier) -> tuple[int, str, list[str]]:
    events = Events()
    target = blank(state(0))
    restored = CheckpointStore(run, emit=events, memory=tier).load(target)
    assert restored is not None
    assert equal(target, state(restored.step))
    [told] = events.of("restore")
    return restored.step, told["tier"], [r.fault for r in restored.refused]


def test_a_job_killed_before_the_disk_had_it_loses_nothing(
    run: RunDirectory, tier: MemoryTier
) -> None:
    """A step that only memory has is loaded; damaged there, the disk's older one is."""
    store = CheckpointStore(run, emit=Events(), memory=tier)
    for step in (1, 2):
        store.save(state(step), step=step, iteration=0, attempt=1, extra={})
    shutil.rmtree(run.checkpoints / "step-00000002")
    assert _restored(run, tier) == (2, "memory", [])
    flip(tier.checkpoints / "step-00000002" / "__0_0.distcp", 2000)
    assert _restored(run, tier) == (1, "disk", ["changed"])


def test_damage_in_memory_never_reaches_the_disk(
    run: RunDirectory, tier: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changed in memory before it was copied fails the save by file and block."""
    damage: list[Callable[[Path], None]] = [lambda path: flip(path / "__0_0.distcp", 2000)]
    real = Path.mkdir

    def mkdir(self: Path, *arguments: Any, **keywords: Any) -> None:
        real(self, *arguments, **keywords)
        if ".tmp-" in self.name and self.parent == run.checkpoints:
            damage.pop()(tier.checkpoints / "step-00000001")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    store = CheckpointStore(run, emit=Events(), memory=tier)
    with pytest.raises(SaveError, match=r"__0_0\.distcp, block 0: changed"):
        store.save(state(1), step=1, iteration=0, attempt=1, extra={})
    assert list(run.checkpoints.iterdir()) == []


def test_without_room_in_memory_the_disk_has_to_do(
    run: RunDirectory, tier: MemoryTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tier that would be filled is left alone; the save goes to the disk as without one."""
    monkeypatch.setattr("tailwatch.trainer.checkpoint.memory.SPARE", 1.1)
    store = CheckpointStore(run, emit=Events(), memory=tier)
    store.save(state(1), step=1, iteration=0, attempt=1, extra={})
    assert tier.committed() == []
    assert verify(run.checkpoints / "step-00000001").verdict == "valid"


def _save_in_memory(rank: int, world_size: int, root: Path) -> list[str]:
    run = RunDirectory(root)
    tier = MemoryTier(run)
    store = CheckpointStore(run, emit=Events(), memory=tier)
    store.save(state(1, rank, world_size), step=1, iteration=0, attempt=1, extra={}, wait=False)
    store.wait()
    target = blank(state(1, rank, world_size))
    shutil.rmtree(run.checkpoints / "step-00000001", ignore_errors=True)
    dist.barrier()
    restored = store.load(target)
    assert restored is not None
    assert equal(target, state(1, rank, world_size))
    return [c.name for c in tier.committed()]


def test_ranks_share_the_copying_from_memory(run: RunDirectory, tier: MemoryTier) -> None:
    """Two ranks bring a step to the disk together, and load it from memory together."""
    assert on_ranks(2, _save_in_memory, run.root) == [["step-00000001"]] * 2
