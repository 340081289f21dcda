"""SIGKILL in the middle of a save: afterwards exactly the step before or the new one is there.

The child kills itself just before or just after the n-th call that could change the disk
(mkdir, open, write, fsync, rename, unlink, rmdir), for every n until the save gets through.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import Events, blank, equal, new_run, on_ranks, save_steps, state
from tailwatch.integrity import Policy, candidates, verify
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import CheckpointStore

CALLS = ("mkdir", "open", "write", "fsync", "rename", "replace", "unlink", "rmdir")


def die_at(number: int, *, after: bool) -> None:
    """Make this process kill itself around its `number`-th call that changes the disk."""
    left = [number]

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **keywords)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name)))


def _save_and_die(root: Path, number: int, after: bool) -> None:
    die_at(number, after=after)
    save(RunDirectory(root), 2)


def save(run: RunDirectory, step: int, attempt: int = 1) -> None:
    """Save one step, keeping two."""
    CheckpointStore(run, policy=Policy(keep_last=2), emit=Events()).save(
        state(step), step=step, iteration=0, attempt=attempt, extra={}
    )


def check(run: RunDirectory, before: int) -> int:
    """Require exactly the step before or the new one, with its true values; return which."""
    events = Events()
    target = blank(state(before))
    restored = CheckpointStore(run, emit=events).load(target)
    assert restored is not None
    assert restored.step in (before, before + 1)
    assert equal(target, state(restored.step))
    assert events.of("checkpoint_refused") == []
    return restored.step


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_call_a_save_is_all_or_nothing(tmp_path: Path, after: bool) -> None:
    """At every kill point the run loads step 1 or step 2 in full, and the next save works."""
    context = multiprocessing.get_context("fork")
    clean = new_run(tmp_path / "clean" / "run-a")
    save_steps(clean, [0, 1])
    seen = []
    number = 0
    exitcode: int | None = -signal.SIGKILL
    while exitcode == -signal.SIGKILL:
        number += 1
        run = RunDirectory(tmp_path / str(number) / "run-a")
        shutil.copytree(clean.root, run.root)
        process = context.Process(target=_save_and_die, args=(run.root, number, after))
        process.start()
        process.join(30)
        exitcode = process.exitcode
        committed = [c for c in candidates(run.checkpoints) if c.state == "committed"]
        assert all(verify(c.path).verdict == "valid" for c in committed), f"kill point {number}"
        seen.append(check(run, 1))
        save(run, 3, attempt=2)
        left = [c for c in candidates(run.checkpoints) if c.state != "committed"]
        assert left == [], f"kill point {number}"
    assert exitcode == 0
    assert number > 12
    assert seen == sorted(seen), "once committed, a step stays"
    assert set(seen) == {1, 2}


def _save_for_ever(rank: int, world_size: int, root: Path, victim: int, seed: int) -> None:
    run = RunDirectory(root)
    store = CheckpointStore(run, policy=Policy(keep_last=3), emit=Events())
    if rank == victim:
        # Dies in the middle of whatever it is doing then.
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, random.Random(seed).uniform(0.05, 0.4))
    for step in range(1, 10_000):
        store.save(state(step, rank, world_size), step=step, iteration=0, attempt=1, extra={})
        (root / f"saved-{rank}").write_text(str(step))


@pytest.mark.parametrize("seed", range(4))
def test_one_of_two_ranks_killed_at_a_random_moment(tmp_path: Path, seed: int) -> None:
    """What a save returned for is there afterwards, or the step after it; never less."""
    run = new_run(tmp_path / "run-a")
    save_steps(run, [0])
    victim = seed % 2
    results = on_ranks(2, _save_for_ever, run.root, victim, seed)
    assert results[victim] is None
    returned = [
        int(path.read_text() or 0) if (path := run.root / f"saved-{rank}").exists() else 0
        for rank in range(2)
    ]
    check(run, max(returned))
