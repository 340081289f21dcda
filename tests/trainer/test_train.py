"""`tailwatch train` on real torchrun agents: to the end, interrupted and resumed, evicted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tailwatch.processes import find_by_token, wait_until
from tailwatch.runs import Attempt, RunDirectory
from tailwatch.trainer.checkpoint import MemoryTier

SMALL = {
    "layers": 1, "d_model": 32, "d_expert": 32, "heads": 2, "digits_max": 3, "prompts": 4,
    "group": 4, "sft_steps": 4, "sft_sequences": 16, "checkpoint_every": 10, "eval_prompts": 16,
}  # fmt: skip


def _train(out: Path, *arguments: str, **settings: int | str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tailwatch", "train", "--out", str(out), *arguments]
    if "--resume" not in arguments:
        for field, value in (SMALL | settings).items():
            command += ["--set", f"{field}={value}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def _step(run: RunDirectory) -> int:
    verified = [e.step or 0 for e in run.read_events() if e.kind == "checkpoint_verified"]
    return max(verified, default=0)


def _of_two(run: RunDirectory) -> Attempt | None:
    """The newest attempt, once both nodes are in it (one may come late) and it has saved."""
    newest = run.read_attempts()[-1:]
    saved = {e.attempt for e in run.read_events() if e.kind == "checkpoint_verified"}
    good = [a for a in newest if len(a.ranks) == 2 and a.attempt in saved]
    return good[0] if good else None


def _finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_a_run_ends_after_its_last_step_with_a_checkpoint_of_it(tmp_path: Path) -> None:
    """The job ends with status 0 and the state after the last step is verified on disk."""
    status, output = _finish(_train(tmp_path / "run", "--ranks", "1", max_steps=24))
    run = RunDirectory(tmp_path / "run")
    assert status == 0, output
    assert _step(run) == 24
    assert run.read_events()[-1].kind == "finish"


def test_a_run_may_save_in_the_background_and_through_memory(tmp_path: Path) -> None:
    """Every step due is staged and verified, the last one too, and memory is left empty."""
    process = _train(
        tmp_path / "run", "--ranks", "1", max_steps=44,
        checkpoint_async="true", checkpoint_memory="true",
    )  # fmt: skip
    status, output = _finish(process)
    run = RunDirectory(tmp_path / "run")
    assert status == 0, output
    events = run.read_events()
    steps = {
        kind: [e.step for e in events if e.kind == f"checkpoint_{kind}"]
        for kind in ("staged", "written", "committed", "verified")
    }
    assert steps["verified"] == steps["committed"] == steps["written"]
    assert steps["verified"][-1] == 44
    assert steps["staged"] == steps["verified"][:-1]
    assert len(steps["staged"]) >= 3
    assert [e.detail for e in events if e.kind == "failure"] == []
    assert not MemoryTier(run).checkpoints.exists()


def test_an_interrupted_run_resumes_where_it_was(tmp_path: Path) -> None:
    """Ctrl-C leaves a checkpoint of the last step, and `--resume` goes on with the next one."""
    out = tmp_path / "run"
    process = _train(out, "--ranks", "1", max_steps=400)
    run = RunDirectory(out)
    wait_until(lambda: _step(run) >= 20, 90, "step 20 is verified")
    os.kill(process.pid, signal.SIGINT)
    status, output = _finish(process)
    assert status == 0, output
    reached, before = _step(run), len(run.read_attempts())
    assert 20 <= reached < 400

    status, output = _finish(_train(out, "--ranks", "1", "--resume"))
    assert status == 0, output
    assert run.read_attempts()[before].resumed_from_step == reached
    assert _step(run) == 400


def test_a_rank_evicted_by_anybody_takes_its_node_out_after_a_checkpoint(tmp_path: Path) -> None:
    """SIGTERM to a rank is an order to leave: a checkpoint, then a smaller world, no lost step."""
    out = tmp_path / "run"
    process = _train(out, "--ranks", "1", max_steps=100_000)
    run = RunDirectory(out)
    try:
        first = wait_until(lambda: _of_two(run), 90, "an attempt of both nodes has a checkpoint")
        assert first is not None
        [evicted] = [p for p in first.ranks if p.rank == 1]
        os.kill(evicted.pid, signal.SIGTERM)
        second = wait_until(
            lambda: next((a for a in run.read_attempts() if a.attempt > first.attempt), None),
            90, "a second attempt trains",
        )  # fmt: skip
        assert second is not None
        [left] = [e for e in run.read_events() if e.kind == "leave" and e.source == "rank0"]
        assert second.world_size == 1
        assert second.resumed_from_step == left.step
    finally:
        process.send_signal(signal.SIGINT)
        _finish(process)


def test_a_run_with_nothing_valid_left_stops_and_says_so(tmp_path: Path) -> None:
    """A run that committed before does not start from nothing, and is not restarted for ever."""
    out = tmp_path / "run"
    assert _finish(_train(out, "--ranks", "1", "--nodes", "1", max_steps=24))[0] == 0
    for shard in (out / "checkpoints").glob("step-*/*.distcp"):
        shard.write_bytes(b"")
    began = time.monotonic()
    status, _ = _finish(_train(out, "--ranks", "1", "--nodes", "1", "--resume"))
    assert status != 0
    assert time.monotonic() - began < 100
    logs = "".join(path.read_text() for path in (out / "logs").rglob("*.log"))
    assert "starts again from nothing only when told to" in logs.replace("\n", " ")
    assert len(list((out / "checkpoints").glob("*.bad-*"))) >= 2


def test_wrong_settings_are_one_line_and_status_2(tmp_path: Path) -> None:
    """An unknown field, a value that cannot be, a used directory: said, nothing started."""
    for arguments in (["--set", "colour=1"], ["--set", "layers=0"], ["--set", "layers"]):
        command = [sys.executable, "-m", "tailwatch", "train", "--out", str(tmp_path / "new")]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "--set" in done.stderr
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    status, output = _finish(_train(tmp_path / "used", "--ranks", "1"))
    assert (status, output.count("\n")) == (2, 1)
    assert "never overwrites" in output


def test_kill_9_of_the_driver_takes_everything_along(tmp_path: Path) -> None:
    """No launcher and no rank outlives a killed `tailwatch train`."""
    process = _train(tmp_path / "run", "--ranks", "1", max_steps=100_000)
    run = RunDirectory(tmp_path / "run")
    wait_until(lambda: run.read_attempts() and run.read_attempts()[-1].ranks, 90, "ranks run")
    pid = run.read_attempts()[-1].ranks[0].pid
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    [token] = [v.split(b"=")[1] for v in environment if v.startswith(b"TAILWATCH_RUN_TOKEN=")]
    process.kill()
    process.communicate()
    wait_until(lambda: not find_by_token(token.decode()), 30, "all processes are gone")
    scratch = Path("/dev/shm") / f"tailwatch-{token.decode()}"
    wait_until(lambda: not scratch.exists(), 30, "the rings are gone")
