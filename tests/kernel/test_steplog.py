"""The step log survives kills and never gives half a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwatch.records import Event, encode
from tailwatch.steplog import StepLog, frame, payloads, read_steplog


def event(number: int) -> Event:
    """A small record."""
    return Event(run="r", attempt=1, time_ns=number, kind="start", source="rank/0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log of the test lies."""
    return tmp_path / "node-0.steplog"


def numbers(path: Path) -> list[int]:
    """The records in a log, by their times."""
    return [r.time_ns for r in read_steplog(path) if isinstance(r, Event)]


def test_what_was_appended_is_read(path: Path) -> None:
    """Records come back in the order in which they were appended, also after reopening."""
    log = StepLog(path)
    log.append([encode(event(1)), encode(event(2))])
    log.close()
    log = StepLog(path)
    log.append([encode(event(3))])
    log.close()
    assert numbers(path) == [1, 2, 3]


def test_a_log_that_is_not_there_is_empty(path: Path) -> None:
    """A node that wrote nothing has no records; that is no error."""
    assert read_steplog(path) == []


def test_every_cut_leaves_the_whole_records_before_it(path: Path) -> None:
    """Wherever a kill cuts the file, the records that were whole are read and no other."""
    frames = [frame(encode(event(n))) for n in range(4)]
    ends = [sum(map(len, frames[: n + 1])) for n in range(4)]
    data = b"".join(frames)
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        assert len(read_steplog(path)) == sum(end <= cut for end in ends)


def test_a_torn_tail_is_overwritten_by_the_next_append(path: Path) -> None:
    """Opening cuts the torn frame off, so what is appended next can be read."""
    path.write_bytes(frame(encode(event(1))) + frame(encode(event(2)))[:-3])
    log = StepLog(path)
    log.append([encode(event(3))])
    log.close()
    assert numbers(path) == [1, 3]


def test_a_flipped_bit_ends_the_reading(path: Path) -> None:
    """A damaged frame and what follows it is not taken for records."""
    data = bytearray(b"".join(frame(encode(event(n))) for n in range(3)))
    size = len(frame(encode(event(0))))
    data[size + 12] ^= 1
    path.write_bytes(data)
    assert numbers(path) == [0]


def test_a_cursor_reads_on_from_where_it_was(path: Path) -> None:
    """Reading in small portions gives whole frames, each once, and nothing at the end."""
    log = StepLog(path)
    log.append([encode(event(n)) for n in range(10)])
    cursor, found = 0, 0
    while data := log.read(cursor, 150):
        found += sum(1 for _ in payloads(data))
        cursor += len(data)
    assert (found, cursor) == (10, log.end)
    assert log.read(log.end, 1000) == b""
    log.close()
