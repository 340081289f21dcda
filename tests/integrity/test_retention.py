"""What may be deleted, what it takes, and when the disk will be full."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from support.checkpoints import flip, write_plain
from support.procs import eventually
from tailwatch.cli import app
from tailwatch.errors import UsageError
from tailwatch.holding import Held, Hold
from tailwatch.integrity import (
    MANIFEST_NAME,
    Policy,
    carry_out,
    forecast,
    plan_retention,
    quarantine,
    step_name,
    verify,
)
from tailwatch.runs import RunDirectory

SIZE = 8192


def checkpoints(root: Path, steps: list[int]) -> Path:
    """Write committed checkpoints of some steps, a minute apart."""
    for step in steps:
        directory = root / step_name(step)
        write_plain(directory, {"a": random.Random(step).randbytes(SIZE)}, step=step)
        time = 1_790_000_000 + 60 * step
        os.utime(directory / MANIFEST_NAME, (time, time))
    return root


def steps(items: list[object]) -> list[int]:
    """Return the steps of a plan's items."""
    return [getattr(item, "step") for item in items]  # noqa: B009


def test_multiples_are_kept_for_good(tmp_path: Path) -> None:
    """The newest few and every tenth step stay; a plan changes nothing, carrying it out does."""
    checkpoints(tmp_path, list(range(5, 45, 5)))
    plan = plan_retention(tmp_path, Policy(keep_last=2, keep_every=10), verified_step=40)
    assert steps([*plan.remove]) == [25, 15, 5]
    assert steps([*plan.keep]) == [40, 35, 30, 20, 10]
    assert [item.why for item in plan.keep] == [
        "newest verified",
        "among the newest 2",
        *["a multiple of 10"] * 3,
    ]
    assert len(list(tmp_path.iterdir())) == 8
    assert carry_out(tmp_path, plan) == ["step-00000005", "step-00000015", "step-00000025"]
    assert carry_out(tmp_path, plan) == []
    again = plan_retention(tmp_path, Policy(keep_last=2, keep_every=10), verified_step=40)
    assert (again.remove, again.bytes, again.inodes) == ([], plan.bytes, plan.inodes)


def test_a_quota_goes_before_what_should_be_kept_but_for_the_last_good_one(tmp_path: Path) -> None:
    """The oldest go until it fits; the newest verified one stays, and the excess is said."""
    checkpoints(tmp_path, [10, 20, 30, 40])
    one = plan_retention(tmp_path, Policy()).keep[0]
    plan = plan_retention(tmp_path, Policy(max_bytes=2 * one.bytes))
    assert (steps([*plan.remove]), plan.exceeds) == ([20, 10], "")
    assert plan.remove[0].why == f"{one.bytes} bytes over the quota"
    plan = plan_retention(tmp_path, Policy(max_inodes=one.inodes - 1))
    assert steps([*plan.remove]) == [30, 20, 10]
    assert plan.exceeds == "1 inodes over the quota"
    assert steps([*plan.keep]) == [40]


def test_what_is_quarantined_counts_and_stays(tmp_path: Path) -> None:
    """Evidence takes its room in the quota, so a good one goes for it, but it is never deleted."""
    checkpoints(tmp_path, [10, 20, 30])
    one = plan_retention(tmp_path, Policy()).keep[0]
    quarantine(tmp_path / step_name(20), "changed")
    plan = plan_retention(tmp_path, Policy(max_bytes=2 * one.bytes))
    assert steps([*plan.remove]) == [10]
    assert steps([*plan.quarantined]) == [20]
    assert plan.bytes == 2 * one.bytes


def test_the_last_verified_one_stays_whatever_the_policy(tmp_path: Path) -> None:
    """Newer damaged ones are no reason to let the last good one go, also by a quota."""
    for seed in range(30):
        dice = random.Random(seed)
        root = tmp_path / str(seed)
        checkpoints(root, [10, 20, 30, 40, 50])
        for step in dice.sample([10, 20, 30, 40, 50], dice.randrange(5)):
            flip(root / step_name(step) / "a", 100)
        policy = Policy(
            keep_last=dice.randrange(1, 4),
            keep_every=dice.choice([None, 20]),
            max_bytes=dice.choice([None, 1]),
            max_inodes=dice.choice([None, 1]),
        )
        good = [s for s in (50, 40, 30, 20, 10) if not verify(root / step_name(s)).problems]
        carry_out(root, plan_retention(root, policy))
        assert verify(root / step_name(good[0])).verdict == "valid", seed


def test_a_policy_must_keep_something() -> None:
    """Nothing to keep, or no quota at all, is a mistake."""
    for field in ("keep_last", "keep_every", "max_bytes", "max_inodes"):
        with pytest.raises(ValueError, match=f"{field} is 0"):
            Policy(**{field: 0})


def test_forecast_counts_the_saves_that_fit(tmp_path: Path) -> None:
    """Until `keep_last` is reached each save takes room, after that only what is kept for good."""
    checkpoints(tmp_path, [10, 20])
    one = plan_retention(tmp_path, Policy()).keep[0].bytes
    full = forecast(tmp_path, Policy(keep_last=4, max_bytes=3 * one))
    assert (full.saves, full.seconds, full.limit) == (1, 600.0, "bytes")
    # Two more until four are there, one more before one may go: five fit, for ever.
    assert forecast(tmp_path, Policy(keep_last=4, max_bytes=5 * one)).saves is None
    # Steps 30 and 40, and then one more for good with every second save.
    grows = forecast(tmp_path, Policy(keep_last=4, keep_every=20, max_bytes=6 * one))
    assert grows.saves == 6
    assert forecast(tmp_path, Policy(max_inodes=6)).limit == "inodes"
    assert forecast(tmp_path / step_name(10), Policy()).saves is None


def prune(*arguments: object) -> tuple[int, str]:
    """Run `tailwatch checkpoint prune` in this process; return exit status and output."""
    result = CliRunner().invoke(app, ["checkpoint", "prune", *map(str, arguments)])
    return result.exit_code, result.output


def test_prune_deletes_nothing_unless_told_to(tmp_path: Path) -> None:
    """Without --apply it only says what would go; with it, that goes, and never the last good."""
    run = RunDirectory.create(tmp_path / "run-a", {})
    checkpoints(run.checkpoints, [10, 20, 30])
    status, output = prune(run.root, "--keep-last", 1)
    assert status == 0
    assert "would delete  step-00000010" in output
    assert "--apply does it" in output
    assert len(list(run.checkpoints.iterdir())) == 3
    status, output = prune(run.checkpoints, "--keep-last", 1, "--max-bytes", 1, "--apply", "--json")
    document = msgspec.json.decode(output)
    assert (status, document["applied"]) == (1, True)
    assert [item["step"] for item in document["plan"]["remove"]] == [20, 10]
    assert document["plan"]["exceeds"].endswith("bytes over the quota")
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000030"]


def test_prune_leaves_a_run_alone_that_is_in_use(tmp_path: Path) -> None:
    """While a job holds the run only the plan can be had; wrong usage is one line."""
    run = RunDirectory.create(tmp_path / "run-a", {})
    checkpoints(run.checkpoints, [10, 20, 30])
    child = os.fork()
    if child == 0:
        taken = Hold.take(run.holder, "run", run.name)
        (run.root / "held").touch()
        time.sleep(60)
        os._exit(taken.released)
    try:
        assert eventually((run.root / "held").exists)
        assert prune(run.root)[0] == 0
        with pytest.raises(Held, match=f"in use by run run-a, pid {child}"):
            CliRunner().invoke(
                app, ["checkpoint", "prune", str(run.root), "--apply"],
                catch_exceptions=False,
            )  # fmt: skip
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert len(list(run.checkpoints.iterdir())) == 3
    with pytest.raises(UsageError, match="no checkpoint of ours there"):
        CliRunner().invoke(app, ["checkpoint", "prune", str(tmp_path)], catch_exceptions=False)
