"""The checkpoint store on real gloo ranks: one decision, other world sizes, errors on all."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

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
from tailwatch.integrity import read_manifest, storage_of
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import (
    CheckpointError,
    CheckpointStore,
    NothingToRestore,
    SaveError,
    SplitViewError,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A fresh run directory."""
    return new_run(tmp_path / "run-a")


def _save(rank: int, world_size: int, root: Path, steps: list[int]) -> None:
    save_steps(RunDirectory(root), steps, rank, world_size)


def _load(rank: int, world_size: int, roots: list[Path]) -> dict[str, Any]:
    """Load on one rank; return what it got, and whether it is the truth for that step."""
    events = Events()
    target = blank(state(0, rank, world_size))
    run = RunDirectory(roots[rank % len(roots)])
    restored = CheckpointStore(run, emit=events, view_seconds=1.0).load(target)
    assert restored is not None
    return {
        "step": restored.step,
        "true": equal(target, state(restored.step, rank, world_size)),
        "refused": [r.checkpoint for r in restored.refused],
        "events": events.seen,
    }


def test_any_number_of_ranks_loads_what_another_saved(run: RunDirectory) -> None:
    """Saved by 4, loaded by 2, saved by 2, loaded by 1 and by 4: the same values every time."""
    on_ranks(4, _save, run.root, [10])
    assert read_manifest(run.checkpoints / "step-00000010").world_size == 4
    for world_size in (4, 2, 1):
        results = on_ranks(world_size, _load, [run.root])
        assert [(r["step"], r["true"]) for r in results] == [(10, True)] * world_size
    on_ranks(2, _save, run.root, [20])
    for world_size in (1, 4):
        results = on_ranks(world_size, _load, [run.root])
        assert [(r["step"], r["true"]) for r in results] == [(20, True)] * world_size


@pytest.mark.parametrize("file", ["__0_0.distcp", "__1_0.distcp", ".metadata", "MANIFEST.json"])
def test_all_ranks_fall_back_together(run: RunDirectory, file: str) -> None:
    """Whichever file is damaged, both ranks use the older step, and rank 0 alone tells it once."""
    on_ranks(2, _save, run.root, [10, 20])
    flip(run.checkpoints / "step-00000020" / file, 100)
    zero, one = on_ranks(2, _load, [run.root])
    for result in (zero, one):
        assert (result["step"], result["true"]) == (10, True)
        assert result["refused"] == ["step-00000020"]
    assert one["events"] == []
    (kind, step, detail), (last, _, _) = zero["events"]
    assert (kind, step, last) == ("checkpoint_refused", 20, "restore")
    assert (detail["file"], detail["fault"], detail["steps_lost"]) == (file, "changed", 10)
    assert (run.checkpoints / "step-00000020.bad-changed").is_dir()


def test_nothing_left_stops_every_rank(run: RunDirectory) -> None:
    """With every checkpoint damaged all ranks raise the same error and nothing is loaded."""
    on_ranks(2, _save, run.root, [10, 20])
    for step in (10, 20):
        flip(run.checkpoints / f"step-{step:08d}" / "__1_0.distcp", 100)
    results = on_ranks(2, _load, [run.root])
    assert [type(r) for r in results] == [NothingToRestore] * 2
    assert str(results[0]) == str(results[1])


def test_a_rank_with_another_view_of_the_disk_costs_no_checkpoint(
    run: RunDirectory, tmp_path: Path
) -> None:
    """What only one rank sees as damaged is an error on all ranks, and is not quarantined."""
    on_ranks(2, _save, run.root, [10])
    other = RunDirectory(tmp_path / "other" / "run-a")
    shutil.copytree(run.root, other.root)
    flip(other.checkpoints / "step-00000010" / "__0_0.distcp", 100)
    flip(other.checkpoints / "step-00000010" / "__1_0.distcp", 100)
    results = on_ranks(2, _load, [run.root, other.root])
    assert [type(r) for r in results] == [SplitViewError] * 2
    assert "rank 1 sees" in str(results[0])
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-00000010"]


def test_ranks_that_see_different_saves_of_a_step_do_not_mix_them(
    run: RunDirectory, tmp_path: Path
) -> None:
    """Two valid saves of one step, one on each rank's disk, are never loaded together."""
    other = new_run(tmp_path / "other" / "run-a")
    on_ranks(2, _save, run.root, [10])
    on_ranks(2, _save, other.root, [10])
    results = on_ranks(2, _load, [run.root, other.root])
    assert [type(r) for r in results] == [SplitViewError] * 2
    assert "different saves" in str(results[1])


def _save_clashing(rank: int, world_size: int, root: Path) -> None:
    clash = state(1, rank, world_size)
    if rank < 2:
        clash["model.layers.0.experts.7.w1"] = torch.full((4,), float(rank))
    CheckpointStore(RunDirectory(root), emit=Events()).save(
        clash, step=1, iteration=0, attempt=1, extra={}
    )


def test_an_expert_with_two_owners_is_refused(run: RunDirectory) -> None:
    """A tensor that some ranks hold and others do not would lose weights: all ranks refuse."""
    results = on_ranks(3, _save_clashing, run.root)
    assert [type(r) for r in results] == [SaveError] * 3
    assert "experts.7.w1 lies on 2 of 3 ranks" in str(results[2])
    assert list(run.checkpoints.iterdir()) == []


def _load_misfit(rank: int, world_size: int, root: Path) -> None:
    target = blank(state(0, rank, world_size))
    if rank == 1:
        target["model.new"] = torch.zeros(3)
    CheckpointStore(RunDirectory(root), emit=Events()).load(target)


def test_a_misfit_on_one_rank_stops_all(run: RunDirectory) -> None:
    """When one rank's tensors do not fit, every rank raises and the checkpoint stays."""
    on_ranks(2, _save, run.root, [10])
    results = on_ranks(2, _load_misfit, run.root)
    assert [type(r) for r in results] == [CheckpointError] * 2
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-00000010"]


def _save_without_room(rank: int, world_size: int, root: Path) -> None:
    _save(rank, world_size, root, [20])


def test_an_unwritable_place_is_an_error_on_all_ranks(run: RunDirectory) -> None:
    """When rank 0 cannot prepare the step, no rank waits for it."""
    run.checkpoints.rmdir()
    run.checkpoints.write_text("in the way")
    results = on_ranks(2, _save_without_room, run.root)
    assert [type(r) for r in results] == [SaveError] * 2
    assert str(results[0]) == str(results[1])


@pytest.mark.parametrize("blind", [0, 1])
def test_a_rank_that_sees_another_listing_stops_all(
    run: RunDirectory, tmp_path: Path, blind: int
) -> None:
    """When one rank does not see the newest step, whichever it is, no rank loads anything."""
    on_ranks(2, _save, run.root, [10, 20])
    other = RunDirectory(tmp_path / "other" / "run-a")
    shutil.copytree(run.root, other.root)
    shutil.rmtree(other.checkpoints / "step-00000020")
    roots = [other.root, run.root] if blind == 0 else [run.root, other.root]
    results = on_ranks(2, _load, roots)
    assert [type(r) for r in results] == [SplitViewError] * 2
    for result in results:
        assert f"rank {blind} does not see step-00000020" in str(result)
    assert len(list(run.checkpoints.iterdir())) == 2


def _load_late(rank: int, world_size: int, roots: list[Path]) -> dict[str, Any]:
    """Load on one rank, while the newest step appears a little later for rank 1."""
    if rank == 1:
        hidden = roots[1] / "hidden"
        threading.Timer(
            0.5, lambda: hidden.rename(roots[1] / "checkpoints" / "step-00000020")
        ).start()
    return _load(rank, world_size, roots)


def test_a_rank_that_sees_a_step_late_is_waited_for(run: RunDirectory, tmp_path: Path) -> None:
    """A listing that lags, as on NFS, costs the lag and neither a step nor the job."""
    on_ranks(2, _save, run.root, [10, 20])
    other = RunDirectory(tmp_path / "other" / "run-a")
    shutil.copytree(run.root, other.root)
    (other.checkpoints / "step-00000020").rename(other.root / "hidden")
    results = on_ranks(2, _load_late, [run.root, other.root])
    assert [(r["step"], r["true"]) for r in results] == [(20, True)] * 2


FIRST_JOB = """
import sys, time
from pathlib import Path
from tailwatch.holding import Hold
from tailwatch.runs import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
taken = Hold.take(run.holder, "run", run.name)
print("held", flush=True)
time.sleep(60)
"""


def _load_second(rank: int, world_size: int, root: Path) -> int:
    store = CheckpointStore(RunDirectory(root), emit=Events(), predecessor_seconds=0.2)
    restored = store.load(blank(state(0, rank, world_size)))
    assert restored is not None
    return restored.step


def test_the_second_job_on_a_run_is_refused_by_the_name_of_the_first(run: RunDirectory) -> None:
    """While one job uses a run, all ranks of another are told its run, pid and host."""
    save_steps(run, [1])
    first = subprocess.Popen(
        [sys.executable, "-c", FIRST_JOB, run.root], stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    results = on_ranks(2, _load_second, run.root)
    first.kill()
    first.wait()
    first.stdout.close()
    who = f"in use by run run-a, pid {first.pid} on {socket.gethostname()}"
    assert [who in str(result) for result in results] == [True, True]
    assert isinstance(results[1], CheckpointError)
    assert on_ranks(2, _load_second, run.root) == [1, 1]


def test_an_object_store_is_refused(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a rename cannot be atomic nothing is saved or loaded; elsewhere a warning will do."""
    mounts = run.root / "mountinfo"
    mounts.write_text("30 1 0:30 / / rw - fuse mountpoint-s3 rw\n")
    real = storage_of
    monkeypatch.setattr(
        "tailwatch.trainer.checkpoint.store.storage_of", lambda path: real(path, mounts)
    )
    with pytest.raises(CheckpointError, match="object store behind FUSE"):
        save_steps(run, [1])
    mounts.write_text("30 1 0:30 / / rw - nfs4 server:/ rw,soft\n")
    with pytest.warns(RuntimeWarning, match="mounted soft"):
        save_steps(run, [1])
