"""What a restart costs: parts that add up, from a real fault and from clocks that disagree."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tailwatch.catalogue.restart import RESTART_PARTS
from tailwatch.processes import wait_until
from tailwatch.records import Event
from tailwatch.runs import RunDirectory
from tailwatch.trainer.launch import restarting
from tailwatch.trainer.launch.agent import drop_torn, poll_seconds
from tailwatch.trainer.launch.restarting import Arrival, Interruption, Restart

SECOND = 1_000_000_000


def _arrival(ended: float, noticed: float, stopped: float, met: float, began: float) -> Arrival:
    interruption = Interruption(
        cause="failure", ended_ns=int(ended * SECOND), noticed_ns=int(noticed * SECOND),
        stopped_ns=int(stopped * SECOND), met_ns=int(met * SECOND),
    )  # fmt: skip
    return Arrival(interruption=interruption, began_ns=int(began * SECOND), forked=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets the clock of this process, in seconds."""

    def tell(seconds: float) -> None:
        monkeypatch.setattr("time.time_ns", lambda: int(seconds * SECOND))

    return tell


def _detail(restart: Restart, clock: Callable[[float], None], *ends: float) -> dict[str, object]:
    for end in ends:
        clock(end)
        restart.done()
    detail = restart.detail()
    assert detail is not None
    return detail


def test_parts_run_from_the_first_sign_to_the_last_rank(clock: Callable[[float], None]) -> None:
    """The fault is the first end anywhere; a part is over when the last node or rank has it."""
    first = _arrival(ended=10, noticed=10.5, stopped=11, met=13, began=14)
    last = _arrival(ended=10.25, noticed=10.75, stopped=12, met=13.5, began=15)
    detail = _detail(Restart([first, last]), clock, 16, 18, 21)
    assert detail["parts"] == {
        "detect": 0.5, "teardown": 1.5, "rendezvous": 1.5, "import": 1.5, "build": 1.0,
        "load": 2.0, "first_step": 3.0,
    }  # fmt: skip
    assert (detail["seconds"], detail["cause"], detail["forked"]) == (11.0, "failure", 2)


def test_clocks_that_disagree_make_no_part_negative(clock: Callable[[float], None]) -> None:
    """What lies before the end of the part before it took no time, and the sum stays true."""
    detail = _detail(Restart([_arrival(10, 9, 12, 11, 11.5)]), clock, 13, 12.5, 14)
    parts = detail["parts"]
    assert isinstance(parts, dict)
    assert min(parts.values()) == 0.0
    assert sum(parts.values()) == detail["seconds"] == 4.0


def test_a_first_start_is_no_restart(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    """A rank that was told of no interruption has none; one that was told passes it on whole."""
    Interruption.hand_over(None)
    restart = Restart([Arrival.now()])
    for end in (1, 2, 3):
        clock(end)
        restart.done()
    assert restart.detail() is None
    told = Interruption(cause="membership", ended_ns=1, noticed_ns=2, stopped_ns=3, met_ns=4)
    monkeypatch.setenv(restarting.VARIABLE, "")
    Interruption.hand_over(told)
    assert Arrival.now().interruption == told
    Interruption.hand_over(None)


def test_a_restart_that_has_not_stepped_is_not_told(clock: Callable[[float], None]) -> None:
    """Without its last part a sum would be too small."""
    restart = Restart([_arrival(1, 2, 3, 4, 5)])
    clock(6)
    restart.done()
    assert restart.detail() is None


def test_agents_never_ask_the_store_more_than_a_hundred_times_a_second() -> None:
    """Few nodes meet at once, many do not drown the store."""
    assert poll_seconds(2) == 0.05
    assert all(nodes / poll_seconds(nodes) <= 100.001 for nodes in range(1, 101))
    assert poll_seconds(10_000) == 1.0


def test_an_error_file_cut_short_is_dropped(tmp_path: Path) -> None:
    """What torch could not read is removed; whole files and those that are not there stay so."""
    empty, cut, whole = (tmp_path / name for name in ("empty", "cut", "whole"))
    empty.write_text("")
    cut.write_text('{"message": {"mess')
    whole.write_text('{"message": "CUDA error"}')
    drop_torn([*map(str, (empty, cut, whole, tmp_path / "none")), os.devnull])
    assert sorted(tmp_path.iterdir()) == [whole]
    assert Path(os.devnull).exists()


def test_a_job_restarts_from_forks_and_says_what_it_cost(tmp_path: Path) -> None:
    """A killed rank, then a killed fork server: both restart, parts add up, the last is forked."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "tailwatch", "train", "--out", str(out), "--nodes", "1"]
    for setting in (
        "layers=1", "d_model=32", "d_expert=32", "heads=2", "digits_max=3", "prompts=4", "group=4",
        "sft_steps=4", "sft_sequences=16", "checkpoint_every=10", "eval_prompts=16",
    ):  # fmt: skip
        command += ["--set", setting]
    train = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    run = RunDirectory(out)

    def resumed() -> list[Event]:
        return [event for event in run.read_events() if event.kind == "resumed"]

    def saved(attempt: int) -> bool:
        return any(
            e.kind == "checkpoint_verified" and e.attempt == attempt for e in run.read_events()
        )

    try:
        wait_until(lambda: saved(1), 120, "a checkpoint of the first attempt")
        [victim] = [p for p in run.read_attempts()[0].ranks if p.rank == 1]
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: len(resumed()) == 1 and saved(2), 120, "the second attempt saves")
        parent = Path(f"/proc/{run.read_attempts()[1].ranks[0].pid}/stat").read_text()
        os.kill(int(parent.rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
        wait_until(lambda: len(resumed()) == 2, 120, "the third attempt steps")
    finally:
        os.kill(train.pid, signal.SIGINT)
        train.wait(120)
    for event, attempt in zip(resumed(), (2, 3), strict=True):
        parts = event.detail["parts"]
        assert (event.attempt, tuple(parts)) == (attempt, RESTART_PARTS)
        assert sum(parts.values()) == pytest.approx(event.detail["seconds"])
        assert event.detail["cause"] == "failure"
        assert event.detail["forked"] == 2
    failures = [e.detail["exit_codes"] for e in run.read_events() if e.kind == "failure"]
    assert failures[0] == {"1": -signal.SIGKILL}
