"""The step log survives kills and never gives half a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwatch.records import Event, encode
from tailwatch.steplog import StepLog, damage, frame, payloads, read_steplog


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


SIZE = len(frame(encode(event(0))))


@pytest.mark.parametrize("byte", [0, 2, 3, 5, 12])
def test_a_flipped_bit_costs_one_record(path: Path, byte: int) -> None:
    """A damaged frame is no record, whichever of its bytes is hit; those behind it are read."""
    data = bytearray(b"".join(frame(encode(event(n))) for n in range(4)))
    data[SIZE + byte] ^= 1
    path.write_bytes(data)
    assert numbers(path) == [0, 2, 3]
    assert damage(bytes(data)) == [(SIZE, 2 * SIZE)]


def test_a_run_of_zeros_holds_no_records(path: Path) -> None:
    """Zeros, as a power cut leaves them, are damage and no empty records."""
    data = frame(encode(event(0))) + bytes(5000) + frame(encode(event(1)))
    path.write_bytes(data)
    assert numbers(path) == [0, 1]
    assert damage(data) == [(SIZE, SIZE + 5000)]
    assert damage(data[: SIZE + 5000]) == [(SIZE, SIZE + 5000)]


def test_a_torn_tail_is_no_damage() -> None:
    """The beginning of a frame at the end is what a kill leaves; a whole one that lies is not."""
    whole = b"".join(frame(encode(event(n))) for n in range(2))
    for cut in range(SIZE, 2 * SIZE + 1):
        assert damage(whole[:cut]) == []
    assert damage(whole[:-1] + b"?") == [(SIZE, 2 * SIZE)]
    assert damage(b"") == []


def test_a_writer_keeps_what_lies_behind_damage(path: Path) -> None:
    """Opening a log with a damaged frame cuts only the torn tail; readers are led past damage."""
    data = bytearray(b"".join(frame(encode(event(n))) for n in range(4)))
    data[SIZE + 12] ^= 1
    path.write_bytes(data + b"torn")
    log = StepLog(path)
    assert (log.end, log.damaged) == (4 * SIZE, {SIZE: 2 * SIZE})
    log.append([encode(event(4))])
    assert numbers(path) == [0, 2, 3, 4]
    assert log.read(0, 10_000) == bytes(data[:SIZE])
    assert log.read(SIZE, 10_000) == b""
    assert log.next_frame(SIZE) == 2 * SIZE
    assert log.next_frame(2 * SIZE) == 2 * SIZE
    assert len(log.read(2 * SIZE, 10_000)) == 3 * SIZE
    log.close()


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
