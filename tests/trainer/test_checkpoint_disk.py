"""Saves on disks that fail, lie, fill up or lose their power: step k or step k+1, never less.

Injection needs strace, the rest a loop device and root; what is missing is printed.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import disks
from support.checkpoints import (
    Events,
    State,
    blank,
    equal,
    new_run,
    on_ranks,
    save_steps,
    state,
)
from support.injection import CALLS, run_injected
from support.injection import unavailable as injection_unavailable
from tailwatch.integrity import Policy, candidates, verify
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import CheckpointStore, SaveError

KILL = -signal.SIGKILL
SAVED, FAILED = 0, 1


def save(root: Path, step: int, attempt: int = 1) -> None:
    """Save one step, keeping two."""
    CheckpointStore(RunDirectory(root), policy=Policy(keep_last=2), emit=Events()).save(
        state(step), step=step, iteration=0, attempt=attempt, extra={}
    )


def loaded(root: Path) -> int:
    """Load; require the true values of the step that is claimed, and return it."""
    target = blank(state(0))
    store = CheckpointStore(RunDirectory(root), emit=Events(), predecessor_seconds=0)
    restored = store.load(target)
    store.close()
    assert restored is not None
    assert equal(target, state(restored.step))
    return restored.step


def sound(root: Path) -> None:
    """Require that everything committed is valid."""
    committed = [c for c in candidates(root / "checkpoints") if c.state == "committed"]
    assert [verify(c.path).problems for c in committed] == [[]] * len(committed)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[int], Path]:
    """Return a maker of runs that have steps 0 and 1."""
    clean = new_run(tmp_path / "clean" / "run-a")
    save_steps(clean, [0, 1])

    def make(number: int) -> Path:
        root = tmp_path / str(number) / "run-a"
        shutil.copytree(clean.root, root)
        return root

    return make


def test_killed_at_every_system_call(fresh: Callable[[int], Path]) -> None:
    """SIGKILL at the n-th call, for every n: step 1 or step 2 in full, and the next save works."""
    if why := injection_unavailable():
        print(f"not run: {why}")
        return
    steps: list[int] = []
    code = KILL
    while code == KILL:
        number = len(steps) + 1
        root = fresh(number)
        code = run_injected(save, root, 2, inject=f"{CALLS}:signal=SIGKILL:when={number}").code
        assert code in (KILL, SAVED)
        sound(root)
        steps.append(loaded(root))
        save(root, 3, attempt=2)
        left = [c.name for c in candidates(root / "checkpoints") if c.state != "committed"]
        assert left == [], f"call {number}"
        shutil.rmtree(root)
    assert len(steps) > 25
    assert steps == sorted(steps), "once committed, a step stays"
    assert set(steps) == {1, 2}


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ("openat,write,pwrite64,mkdir,rename", "ENOSPC"),
        ("openat,write,fsync,rename,unlink,unlinkat,rmdir", "EIO"),
    ],
)
def test_every_call_that_fails(fresh: Callable[[int], Path], calls: str, error: str) -> None:
    """An error at the n-th call, for every n: a SaveError or a step, and what was there stays."""
    if why := injection_unavailable():
        print(f"not run: {why}")
        return
    codes: list[int] = []
    hits = 1
    while hits:
        number = len(codes) + 1
        root = fresh(number)
        inject = f"{calls}:error={error}:when={number}"
        code, hits = run_injected(_save_or_say, root, 2, inject=inject)
        assert code in (SAVED, FAILED), f"call {number}"
        sound(root)
        assert loaded(root) in ((1, 2) if code == FAILED else (2,)), f"call {number}"
        shutil.rmtree(root)
        codes.append(code)
    assert len(codes) > 15
    assert codes[-1] == SAVED
    assert FAILED in codes


def _save_or_say(root: Path, step: int) -> None:
    try:
        save(root, step)
    except SaveError:
        os._exit(FAILED)


def _cut_after_save(root: Path, place: Path, how: int) -> None:
    save(root, 2)
    disks.cut_power(place, how)


def _cut_at_fsync(root: Path, place: Path, how: int, number: int) -> None:
    left = [number]
    real = os.fsync

    def fsync(fd: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            disks.cut_power(place, how)
        real(fd)

    os.fsync = fsync  # type: ignore[assignment]
    try:
        save(root, 2)
    except SaveError:
        os._exit(FAILED)


def _in_child(function: Callable[..., Any], *arguments: Any) -> int:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            function(*arguments)
            code = SAVED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


CUTS = pytest.mark.parametrize("how", [disks.FLUSH_LOG, disks.KEEP_LOG], ids=["flushed", "lost"])


@CUTS
@pytest.mark.parametrize("kind", disks.formats())
def test_power_cut_right_after_a_save(tmp_path: Path, kind: str, how: int) -> None:
    """What `save` returned for is on the disk and valid after a power cut."""
    if why := disks.unavailable():
        print(f"not run: {why}")
        return
    with disks.disk(tmp_path, kind) as place:
        run = new_run(place / "run-a")
        save_steps(run, [1])
        assert _in_child(_cut_after_save, run.root, place, how) == SAVED
        disks.restore_power(place)
        sound(run.root)
        assert loaded(run.root) == 2
        assert run.has_committed()


@CUTS
def test_power_cut_at_every_fsync_of_a_save(tmp_path: Path, how: int) -> None:
    """A power cut in the middle leaves the step before or the new one, in full."""
    if why := disks.unavailable():
        print(f"not run: {why}")
        return
    codes: list[int] = []
    steps = set()
    while SAVED not in codes:
        folder = tmp_path / str(len(codes))
        with disks.disk(folder, "ext4") as place:
            run = new_run(place / "run-a")
            save_steps(run, [1])
            os.sync()
            codes.append(_in_child(_cut_at_fsync, run.root, place, how, len(codes) + 1))
            assert codes[-1] in (SAVED, FAILED)
            disks.restore_power(place)
            sound(run.root)
            steps.add(loaded(run.root))
    assert len(codes) > 4
    assert steps <= {1, 2}


def test_a_disk_that_lies_about_fsync_loses_a_step_not_the_truth(tmp_path: Path) -> None:
    """When fsync did nothing, a power cut may cost the new step; what is left of it is refused."""
    if why := disks.unavailable() or injection_unavailable():
        print(f"not run: {why}")
        return
    with disks.disk(tmp_path, "ext4") as place:
        run = new_run(place / "run-a")
        save_steps(run, [1])
        os.sync()
        run_injected(_cut_after_save, run.root, place, disks.FLUSH_LOG, inject="fsync:retval=0")
        disks.restore_power(place)
        assert loaded(run.root) == 1
        sound(run.root)


def _save_on_rank(rank: int, world_size: int, root: Path, big: int) -> str:
    store = CheckpointStore(RunDirectory(root), emit=Events())
    mine: State = state(2, rank, world_size)
    mine[f"model.layers.0.big.{rank}"] = blank(mine)["model.embed"].repeat(big, 1)
    try:
        store.save(mine, step=2, iteration=0, attempt=1, extra={})
    except SaveError as error:
        return error.reason
    return "saved"


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """However much room is left, all ranks say that there is none, and the step before stays."""
    if why := disks.unavailable():
        print(f"not run: {why}")
        return
    outcomes = set()
    for kilobytes in (64, 120, 300, 560, 620, 700, 2000):
        with disks.tmpfs(tmp_path, f"{kilobytes}k") as place:
            run = new_run(place / "run-a")
            save_steps(run, [1])
            # 256 KiB a rank: the first check says no, or the first file, or the second.
            results = on_ranks(2, _save_on_rank, run.root, 512)
            assert results in (["no space"] * 2, ["saved"] * 2), kilobytes
            sound(run.root)
            left = [c.name for c in candidates(run.checkpoints) if c.state == "temporary"]
            assert left == []
            if results == ["no space"] * 2:
                assert loaded(run.root) == 1
            outcomes.add(results[0])
    assert outcomes == {"no space", "saved"}


def test_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    """Both ranks say that it is read-only; what is on it can still be loaded."""
    if why := disks.unavailable():
        print(f"not run: {why}")
        return
    with disks.disk(tmp_path, "ext4") as place:
        run = new_run(place / "run-a")
        save_steps(run, [1])
        disks.make_read_only(place)
        assert on_ranks(2, _save_on_rank, run.root, 1) == ["read-only"] * 2
        assert loaded(run.root) == 1


def _save_with_bad_fsync(rank: int, world_size: int, root: Path, number: int) -> str:
    left = [number if rank == 1 else 0]
    real = os.fsync

    def fsync(fd: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    os.fsync = fsync  # type: ignore[assignment]
    return _save_on_rank(rank, world_size, root, 1)


def test_an_fsync_that_fails_on_one_rank_fails_the_save_on_all(tmp_path: Path) -> None:
    """EIO on a rank's file is the same error on both ranks, and is not tried again."""
    run = new_run(tmp_path / "run-a")
    save_steps(run, [1])
    assert on_ranks(2, _save_with_bad_fsync, run.root, 1) == ["input/output error"] * 2
    assert loaded(run.root) == 1
    assert on_ranks(2, _save_with_bad_fsync, run.root, 0) == ["saved"] * 2


def test_a_slow_disk_only_takes_longer(fresh: Callable[[int], Path]) -> None:
    """With 100 ms more for every fsync a save takes them all, and is as valid as any."""
    if why := injection_unavailable():
        print(f"not run: {why}")
        return
    root = fresh(1)
    started = time.monotonic()
    assert run_injected(save, root, 2, inject="fsync:delay_enter=100000").code == SAVED
    assert time.monotonic() - started > 0.4
    assert loaded(root) == 2
