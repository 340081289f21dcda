"""Records, events and orders on the wire and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch import control
from tailwatch.control import Order, RankFault
from tailwatch.records import (
    MAX_RECORD_BYTES,
    Event,
    StepRecord,
    decode,
    encode,
    event_line,
    parse_event_line,
)


def step_record(**fields: Any) -> StepRecord:
    """A record with all that is required."""
    defaults: dict[str, Any] = {
        "run": "r",
        "attempt": 1,
        "step": 7,
        "iteration": 3,
        "rank": 2,
        "node": "node-1",
        "world_size": 4,
        "configuration": "toy/ep4",
        "stage": "grpo",
        "start_ns": 1,
        "start_mono_ns": 2,
        "duration_ns": 3,
        "phases_ns": {"optimizer": 3},
    }
    return StepRecord(**{**defaults, **fields})


@given(
    loss=st.none() | st.floats(allow_nan=False),
    waits=st.dictionaries(st.sampled_from(["ep", "dp"]), st.integers(0, 2**62)),
    rows=st.lists(st.integers(0, 2**31), max_size=8),
    warmup=st.booleans(),
)
def test_a_record_comes_back_as_it_was(
    loss: float | None, waits: dict[str, int], rows: list[int], warmup: bool
) -> None:
    """Encoding and decoding keeps every field, losses to the last bit."""
    record = step_record(loss=loss, waits_ns=waits, rows_to=rows, warmup=warmup)
    assert decode(encode(record)) == record


def test_an_event_is_told_from_a_step() -> None:
    """Both kinds share the wire and come back as what they were."""
    event = Event(run="r", attempt=1, time_ns=5, kind="restore", source="rank/0", step=50)
    assert decode(encode(event)) == event
    assert parse_event_line(event_line(event)) == event
    assert event_line(event).count(b"\n") == 1


def test_a_record_that_no_slot_holds_is_refused() -> None:
    """A record longer than a ring slot raises at the writer, not at the reader."""
    with pytest.raises(ValueError, match=f"at most {MAX_RECORD_BYTES}"):
        encode(step_record(rows_to=[2**31] * 1000))


def test_a_record_of_a_large_job_fits_a_slot() -> None:
    """64 peers and 32 local experts still fit."""
    record = step_record(
        run="run-20261201-100000-abcd",
        rows_to=[60_000] * 64,
        rows_from=[60_000] * 64,
        expert_tokens=[60_000] * 32,
        phases_ns=dict.fromkeys([f"phase_{i:02d}" for i in range(15)], 10**10),
        waits_ns={"ep": 10**10, "dp": 10**10},
    )
    assert len(encode(record)) <= MAX_RECORD_BYTES


def test_fields_that_a_newer_writer_added_are_passed_over() -> None:
    """A reader meets records of the next version without failing."""
    raw: dict[str, Any] = msgspec.msgpack.decode(encode(step_record()))
    raw |= {"version": 2, "temperature": 61}
    read = decode(msgspec.msgpack.encode(raw))
    assert isinstance(read, StepRecord)
    assert (read.version, read.step) == (2, 7)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa4type\xa5alien"])
def test_bytes_that_are_no_record_raise(data: bytes) -> None:
    """Damage is an error of the decoder, never a made-up record."""
    with pytest.raises(msgspec.MsgspecError):
        decode(data)


def order(identity: str, **fields: Any) -> Order:
    """An order with all that is required."""
    defaults: dict[str, Any] = {"kind": "checkpoint", "by": "t", "reason": "", "deadline_ns": 9}
    return Order(id=identity, **{**defaults, **fields})


def test_orders_are_read_in_the_order_they_were_given(tmp_path: Path) -> None:
    """Names sort by time of creation, and what was seen is not read again."""
    ids = [control.new_order_id() for _ in range(5)]
    assert ids == sorted(ids)
    for identity in reversed(ids):
        control.submit(tmp_path, order(identity))
    assert [path.stem for path in control.pending(tmp_path, set())] == ids
    assert [path.stem for path in control.pending(tmp_path, set(ids[:4]))] == ids[4:]
    assert control.read_order(tmp_path / f"{ids[0]}.json") == order(ids[0])


def test_no_directory_means_no_orders(tmp_path: Path) -> None:
    """A run whose orders directory is not there yet has none."""
    assert control.pending(tmp_path / "none", set()) == []


def test_a_fault_stands_until_it_expires_or_is_cleared(tmp_path: Path) -> None:
    """Expiry and clearing end a fault for good; clearing twice is harmless."""
    fault = {"kind": "fault", "rank": 1, "fault": RankFault(delay_seconds=0.1)}
    control.submit(tmp_path, order("1", **fault, fault_until_ns=100))
    control.submit(tmp_path, order("2", **fault, fault_until_ns=200))
    control.submit(tmp_path, order("3"))
    assert [o.id for o in control.standing_faults(tmp_path, 50)] == ["1", "2"]
    assert [o.id for o in control.standing_faults(tmp_path, 150)] == ["2"]
    control.clear_fault(tmp_path, "2")
    control.clear_fault(tmp_path, "2")
    assert control.standing_faults(tmp_path, 150) == []


def test_an_order_with_an_unknown_field_is_none(tmp_path: Path) -> None:
    """An order that says more than is understood is not carried out."""
    path = tmp_path / "1.json"
    path.write_bytes(msgspec.json.encode(order("1")).replace(b"}", b',"force":true}', 1))
    with pytest.raises(ValueError, match="unreadable"):
        control.read_order(path)
