"""The ring: what is written is read once and in order, or counted as lost."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from support.ranks import ring
from tailwatch.ring import Mark, MarkCode, RingReader, RingWriter, TornRing
from tailwatch.ring.layout import (
    END,
    HEADER_BYTES,
    MARK,
    PAYLOAD_BYTES,
    RECORD_BYTES,
    RECORD_HEADER,
)

SLOTS = 8


def small(directory: Path, slots: int = SLOTS) -> RingWriter:
    """Return a ring of few slots."""
    return ring(directory, mark_slots=16, record_slots=slots)


def slot_at(number: int) -> int:
    """Return the offset of the slot of record `number` in a ring of `small`."""
    return HEADER_BYTES + 16 * MARK.size + (number - 1) % SLOTS * RECORD_BYTES


def numbers(payloads: list[bytes]) -> list[int]:
    """Return the numbers that were appended as payloads."""
    return [int(payload) for payload in payloads]


def append(writer: RingWriter, first: int, last: int) -> None:
    """Append the numbers `first` to `last` as payloads."""
    for number in range(first, last + 1):
        writer.append(str(number).encode())


def test_header_is_read_back(tmp_path: Path) -> None:
    """A reader learns run, node, attempt, rank, world size and pid from the file alone."""
    writer = ring(tmp_path, rank=3, attempt=7)
    reader = RingReader(writer.path)
    identity = (reader.run, reader.node, reader.attempt, reader.rank, reader.world_size)
    assert identity == ("run-1", "node-1", 7, 3, 4)
    assert reader.pid == os.getpid()
    assert writer.path.name == "run-1.a0007.r00003.ring"


def test_new_ring_is_empty(tmp_path: Path) -> None:
    """A ring that nobody wrote to holds no record and no mark, and none of them is lost."""
    reader = RingReader(small(tmp_path).path)
    assert reader.read_records() == []
    assert reader.last_mark() is None
    assert reader.lost == 0


def test_records_come_once_and_in_order(tmp_path: Path) -> None:
    """Each call returns what was appended since the one before."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    append(writer, 1, 3)
    assert numbers(reader.read_records()) == [1, 2, 3]
    assert reader.read_records() == []
    append(writer, 4, 5)
    assert numbers(reader.read_records()) == [4, 5]


@pytest.mark.parametrize("chunk", [1, 3, SLOTS - 1, SLOTS])
def test_wrap_around_loses_nothing(tmp_path: Path, chunk: int) -> None:
    """A reader that keeps up sees every record over many rounds of the ring."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    seen: list[int] = []
    for first in range(1, 10 * SLOTS, chunk):
        append(writer, first, first + chunk - 1)
        seen += numbers(reader.read_records())
    assert seen == list(range(1, seen[-1] + 1))
    assert reader.lost == 0


@pytest.mark.parametrize("written", [SLOTS, SLOTS + 1, 3 * SLOTS, 3 * SLOTS + 5])
def test_lapped_reader_counts_what_it_missed(tmp_path: Path, written: int) -> None:
    """A reader that was lapped goes on with the oldest record that is left and counts the rest."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    append(writer, 1, written)
    assert numbers(reader.read_records()) == list(range(written - SLOTS + 1, written + 1))
    assert reader.lost == written - SLOTS
    append(writer, written + 1, written + 2)
    assert numbers(reader.read_records()) == [written + 1, written + 2]


def test_reader_goes_on_from_a_sequence(tmp_path: Path) -> None:
    """A reader opened with a sequence returns only what lies behind it."""
    writer = small(tmp_path)
    append(writer, 1, 11)
    reader = RingReader(writer.path, sequence=9)
    assert numbers(reader.read_records()) == [10, 11]
    assert reader.lost == 0


def test_identical_payloads_are_different_records(tmp_path: Path) -> None:
    """Records with the same content in the same slot are told apart over a wrap-around."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    for _ in range(5):
        for _ in range(SLOTS):
            writer.append(b"same")
        assert reader.read_records() == [b"same"] * SLOTS
    assert reader.lost == 0


@pytest.mark.parametrize("damage", ["payload", "checksum", "length", "sequence", "zeros"])
@pytest.mark.parametrize("at", [1, 4, SLOTS])
def test_damaged_slot_costs_one_record(tmp_path: Path, damage: str, at: int) -> None:
    """A damaged slot is passed over and counted as soon as a newer record is there."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    append(writer, 1, at)
    with writer.path.open("r+b") as file:
        data = bytearray(RECORD_BYTES)
        if damage != "zeros":
            file.seek(slot_at(at))
            data = bytearray(file.read(RECORD_BYTES))
            data[{"payload": 16, "checksum": 5, "length": 2, "sequence": 12}[damage]] ^= 0x80
        file.seek(slot_at(at))
        file.write(data)
    assert numbers(reader.read_records()) == list(range(1, at))
    append(writer, at + 1, at + 2)
    assert numbers(reader.read_records()) == [at + 1, at + 2]
    assert reader.lost == 1


def test_half_written_record_is_waited_for(tmp_path: Path) -> None:
    """A slot whose content and header do not yet fit is neither returned nor given up."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    append(writer, 1, 1)
    with writer.path.open("r+b", buffering=0) as file:
        file.seek(slot_at(2))
        file.write(RECORD_HEADER.pack(3, 12345, 2) + b"ab")
        assert numbers(reader.read_records()) == [1]
    append(writer, 2, 2)
    assert numbers(reader.read_records()) == [2]
    assert reader.lost == 0


def test_payload_longer_than_a_slot_is_refused(tmp_path: Path) -> None:
    """A payload that would run into the next slot raises and changes nothing."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    writer.append(b"x" * PAYLOAD_BYTES)
    with pytest.raises(ValueError, match="at most 2032"):
        writer.append(b"x" * (PAYLOAD_BYTES + 1))
    writer.append(b"y")
    assert reader.read_records() == [b"x" * PAYLOAD_BYTES, b"y"]


@pytest.mark.parametrize("length", [0, 10, HEADER_BYTES - 1])
def test_file_without_header_is_torn(tmp_path: Path, length: int) -> None:
    """A file too short for a header is refused by name."""
    path = tmp_path / "x.ring"
    path.write_bytes(b"TWRING\x00\x01"[:length].ljust(length, b"\0"))
    with pytest.raises(TornRing, match=r"x\.ring"):
        RingReader(path)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, b"X"),
        (8, b"\xff\xff"),
        (12, b"\0" * 4),
        (16, b"\xff" * 4),
        (20, b"\1\0\0\0"),
        (42, b"\xc1"),
    ],
)
def test_nonsense_in_the_header_is_torn(tmp_path: Path, offset: int, value: bytes) -> None:
    """A wrong magic, version, size or identity is refused and not worked with."""
    path = small(tmp_path).path
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value)
    with pytest.raises(TornRing):
        RingReader(path)


@pytest.mark.parametrize("length", [0, 100, HEADER_BYTES + 50, slot_at(3) + 7, slot_at(5)])
def test_ring_cut_while_it_is_read(tmp_path: Path, length: int) -> None:
    """A file that is cut under its reader reads as nothing new, and never raises."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    append(writer, 1, 2)
    assert numbers(reader.read_records()) == [1, 2]
    append(writer, 3, 6)
    os.truncate(writer.path, length)
    assert numbers(reader.read_records()) == [n for n in (3, 4) if slot_at(n + 1) <= length]
    reader.last_mark()


def test_last_mark_is_the_newest(tmp_path: Path) -> None:
    """The newest mark is found at any place of the ring, over several rounds."""
    writer = small(tmp_path)
    reader = RingReader(writer.path)
    writer.begin_step(9)
    for number in range(1, 60):
        code = MarkCode.EP_DISPATCH | (END if number % 2 else 0)
        at = writer.mark(code, number)
        expected = Mark(number, at, 9, MarkCode.EP_DISPATCH, number, bool(number % 2))
        assert reader.last_mark() == expected


def test_mark_with_unknown_code_is_no_mark(tmp_path: Path) -> None:
    """A code this version does not know gives None and does not raise."""
    writer = small(tmp_path)
    writer.mark(999)
    assert RingReader(writer.path).last_mark() is None


def test_ring_appears_whole(tmp_path: Path) -> None:
    """A ring is visible under its name only with its header in it."""
    writer = small(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [writer.path.name]


def test_doorbell_that_nobody_has_costs_nothing(tmp_path: Path) -> None:
    """A missing socket, and one with a path that is too long, do not disturb the writer."""
    for name in ("nobody.sock", "x" * 200):
        writer = ring(tmp_path, doorbell=tmp_path / name)
        writer.append(b"1")
        assert RingReader(writer.path).read_records() == [b"1"]


def test_doorbell_is_rung_again_after_the_agent_came_back(tmp_path: Path) -> None:
    """A writer rings whoever owns the path now, before, between and after two owners."""
    path = tmp_path / "bell"
    writer = ring(tmp_path, doorbell=path)
    writer.append(b"nobody")
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as owner:
            owner.bind(str(path))
            owner.settimeout(0.05)
            for attempt in range(200):
                writer.append(f"{attempt}".encode())
                try:
                    assert owner.recv(16) == b"\x01"
                    break
                except TimeoutError:
                    continue
            else:
                pytest.fail("never rung")
        path.unlink()
        writer.append(b"nobody")


def test_full_doorbell_queue_costs_nothing(tmp_path: Path) -> None:
    """An owner that never listens does not hold the writer, and the ring has every record."""
    path = tmp_path / "bell"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as owner:
        owner.bind(str(path))
        writer = ring(tmp_path, doorbell=path)
        reader = RingReader(writer.path)
        append(writer, 1, 200)
        assert numbers(reader.read_records()) == list(range(1, 201))
