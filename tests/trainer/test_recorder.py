"""The recorder: phases are exclusive and add up, and nothing it does can stop a step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tailwatch.records import Event, StepRecord, decode
from tailwatch.ring import MarkCode, RingReader, RingWriter
from tailwatch.trainer.recorder import StepRecorder


@pytest.fixture
def recorder(tmp_path: Path) -> StepRecorder:
    """A recorder with a small ring."""
    ring = RingWriter(
        tmp_path, run="r", attempt=1, rank=0, world_size=1, node="n",
        mark_slots=256, record_slots=16,
    )  # fmt: skip
    return StepRecorder(
        ring, run="r", attempt=1, rank=0, world_size=1, node="n", configuration="c", first_expert=0
    )


def _end(recorder: StepRecorder, peers: int = 1) -> None:
    recorder.end_step(
        tokens=1, rows_to=[10**6] * peers, rows_from=[10**6] * peers, expert_tokens=[1],
        policy_version=3, staleness=1, loss=0.5, reward=None, warmup=False,
    )  # fmt: skip


def _records(tmp_path: Path) -> list[StepRecord | Event]:
    [path] = tmp_path.glob("*.ring")
    reader = RingReader(path)
    return [decode(payload) for payload in reader.read_records()]


def test_phases_and_the_unaccounted_rest_add_up_to_the_step(
    recorder: StepRecorder, tmp_path: Path
) -> None:
    """The sum of all phases is the duration; a phase entered twice counts twice."""
    recorder.begin_step(7, 3, "grpo")
    for _ in range(2):
        with recorder.phase("reward"):
            time.sleep(0.05)
    with recorder.phase("optimizer"):
        started = recorder.begin(MarkCode.EP_COUNTS, 1)
        assert recorder.end_child("ep_counts", MarkCode.EP_COUNTS, started, 1) >= 0
    with recorder.wait("dp"):
        time.sleep(0.05)
    _end(recorder)
    [record] = _records(tmp_path)
    assert isinstance(record, StepRecord)
    assert (record.step, record.iteration, record.stage) == (7, 3, "grpo")
    assert sum(record.phases_ns.values()) == record.duration_ns
    assert record.phases_ns["reward"] >= 100_000_000
    assert record.waits_ns["dp"] >= 50_000_000
    assert set(record.children_ns) == {"ep_counts"}


def test_a_step_starts_from_nothing(recorder: StepRecorder, tmp_path: Path) -> None:
    """Nothing of one step is found in the next."""
    recorder.begin_step(1, 0, "sft")
    with recorder.phase("data"), recorder.wait("ep"):
        pass
    _end(recorder)
    recorder.begin_step(2, 0, "sft")
    _end(recorder)
    _, second = _records(tmp_path)
    assert isinstance(second, StepRecord)
    assert set(second.phases_ns) == {"unaccounted"}
    assert second.waits_ns == {}


def test_a_record_that_does_not_fit_loses_its_peers_and_not_the_step(
    recorder: StepRecorder, tmp_path: Path
) -> None:
    """With very many peers the record goes without who sent how much to whom."""
    recorder.begin_step(1, 0, "sft")
    _end(recorder, peers=1000)
    [record] = _records(tmp_path)
    assert isinstance(record, StepRecord)
    assert record.rows_to == record.rows_from == []
    assert record.loss == 0.5


def test_an_event_that_does_not_fit_is_cut(recorder: StepRecorder, tmp_path: Path) -> None:
    """An event with too much detail is there all the same."""
    recorder.event("failure", step=3, detail={"reason": "x" * 9000})
    [event] = _records(tmp_path)
    assert isinstance(event, Event)
    assert event.kind == "failure"
    assert len(str(event.detail)) < 1500
