"""The step log: whole frames or nothing, whatever happens to the file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ranks import step_record
from tailwatch.errors import UsageError
from tailwatch.records import MAX_RECORD_BYTES, StepRecord, encode
from tailwatch.steplog import StepLog, frame, payloads, read_steplog

_PAYLOADS = st.lists(st.binary(min_size=1, max_size=200), max_size=12)


def whole(path: Path) -> list[bytes]:
    """Return the payloads of the frames in a file."""
    return [bytes(payload) for _, payload in payloads(path.read_bytes())]


@settings(max_examples=100, deadline=None)
@given(before=_PAYLOADS, after=_PAYLOADS, cut=st.integers(0, 3000))
def test_torn_tail_is_cut_and_written_over(
    before: list[bytes], after: list[bytes], cut: int
) -> None:
    """Cut anywhere, a log keeps the frames before the cut and takes new ones behind them."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.steplog"
        log = StepLog(path)
        log.append(before)
        log.close()
        size = min(cut, path.stat().st_size)
        os.truncate(path, size)
        kept, end = [], 0
        for payload in before:
            if end + len(frame(payload)) > size:
                break
            end += len(frame(payload))
            kept.append(payload)
        log = StepLog(path)
        assert log.end == end
        log.append(after)
        log.close()
        assert whole(path) == kept + after


@settings(max_examples=100, deadline=None)
@given(
    written=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=10),
    limit=st.integers(0, 2000),
)
def test_reading_in_pieces_gives_everything(written: list[bytes], limit: int) -> None:
    """With any limit each read gives at least one frame, and at most the limit if more than one."""
    with tempfile.TemporaryDirectory() as directory:
        log = StepLog(Path(directory) / "x.steplog")
        log.append(written)
        cursor, found = 0, []
        while data := log.read(cursor, limit):
            part = [bytes(payload) for _, payload in payloads(data)]
            assert part
            assert len(part) == 1 or len(data) <= limit
            found += part
            cursor += len(data)
        assert found == written
        assert cursor == log.end
        log.close()


def test_longest_record_is_read_with_the_smallest_limit(tmp_path: Path) -> None:
    """A record of the greatest length comes whole even when the limit is 0."""
    log = StepLog(tmp_path / "x.steplog")
    log.append([b"x" * MAX_RECORD_BYTES] * 2)
    assert log.read(0, 0) == frame(b"x" * MAX_RECORD_BYTES)


@pytest.mark.parametrize("cursor", [-1, 1, 5, 10**9])
def test_impossible_cursor_raises(tmp_path: Path, cursor: int) -> None:
    """A cursor that is no beginning of a frame raises; the end itself is a cursor."""
    log = StepLog(tmp_path / "x.steplog")
    log.append([b"abc", b"def"])
    assert log.read(log.end, 100) == b""
    with pytest.raises(ValueError, match="cursor"):
        log.read(cursor, 100)


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(0, 5),
    patches=st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=9))),
)
def test_damage_never_invents_records(count: int, patches: list[tuple[int, bytes]]) -> None:
    """Whatever bytes are in the file, what is read was written, and in the order written."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.steplog"
        records = [step_record(0, step) for step in range(count)]
        data = bytearray(b"".join(frame(encode(record)) for record in records))
        for offset, patch in patches:
            data[offset : offset + len(patch)] = patch
        path.write_bytes(bytes(data))
        steps = [record.step for record in read_steplog(path) if isinstance(record, StepRecord)]
        assert steps == sorted(set(steps))
        assert read_steplog(path) == [records[step] for step in steps]


def test_missing_log_holds_nothing(tmp_path: Path) -> None:
    """A file that does not exist holds no records."""
    assert read_steplog(tmp_path / "no.steplog") == []


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second writer is refused while the first lives, and welcome afterwards."""
    path = tmp_path / "x.steplog"
    first = StepLog(path)
    with pytest.raises(UsageError, match="another process writes"):
        StepLog(path)
    first.close()
    StepLog(path).close()
    with pytest.raises(UsageError, match="cannot be written"):
        StepLog(Path("/proc/nowhere"))
