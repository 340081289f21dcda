"""The kernel log: each record once, the overwritten ones counted, and never blind for long."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.kmsg import FakeKmsg
from tailwatch.agents.node.kmsg import BATCH, KernelRecord, Kmsg, Position, parse_record


@pytest.fixture
def fake() -> Iterator[FakeKmsg]:
    """A kernel log."""
    made = FakeKmsg()
    yield made
    made.end()


def reader(fake: FakeKmsg, after: Position | None = None) -> Kmsg:
    """Return a reader of it."""
    return Kmsg(Path("/dev/kmsg"), after=after, opener=fake.opener, reader=fake.reader)


def texts(records: list[KernelRecord]) -> list[str]:
    """Return what records say."""
    return [record.text for record in records]


def test_fields_of_a_record() -> None:
    """Priority splits into facility and level, sequence and microseconds follow."""
    record = parse_record(
        b"6,3973,227996636,-;nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected\n"
    )
    assert record is not None
    assert record[:4] == (0, 6, 3973, 227996636)
    assert record.text.startswith("nvidia-peermem nv_get_p2p_free_callback:127")


def test_continuation_lines_belong_to_the_record() -> None:
    """Lines that begin with a blank are fields of the record above, not records."""
    record = parse_record(
        b"6,4002,3757433091,-;IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready\n"
        b" SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n"
    )
    assert record is not None
    assert record.text == "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready"
    assert record.fields == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:05:00.0"}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"12,1,2,c,caller=T1;a user wrote; this\n", "a user wrote; this"),
        (b"3,1,2,-;two\\x0alines \\x5cx\n", "two\nlines \\x"),
        (b"3,1,2,-;\n", ""),
        (b"3,1,2,-;caf\\xc3\\xa9 \\xff\n", "café \ufffd"),
    ],
)
def test_text_is_unescaped(data: bytes, text: str) -> None:
    """Bytes that the kernel escaped come back, and further flags do no harm."""
    record = parse_record(data)
    assert record is not None
    assert record.text == text


@given(st.binary(max_size=200))
def test_nonsense_is_no_record(data: bytes) -> None:
    """Whatever the bytes, the parser returns a record or None."""
    record = parse_record(data)
    assert record is None or record.sequence >= 0


def test_repeated_sequence_numbers_are_records_of_their_own(fake: FakeKmsg) -> None:
    """Records with the same sequence number are each read, and none counts as lost."""
    source = reader(fake)
    for microseconds in (227996636, 227996637, 227996662):
        fake.log("invalid context", sequence=3973, microseconds=microseconds)
    fake.log("link becomes ready", sequence=3974, microseconds=3757433091)
    assert len(source.read()) == 4
    assert source.lost == 0


def test_each_record_is_read_once(fake: FakeKmsg) -> None:
    """What was there and what comes is read once, in order."""
    fake.log("one")
    source = reader(fake)
    assert texts(source.read()) == ["one"]
    assert source.read() == []
    fake.log("two")
    fake.log("three")
    assert texts(source.read()) == ["two", "three"]
    assert (source.records, source.lost) == (3, 0)


def test_overrun_is_counted_and_reading_goes_on(fake: FakeKmsg) -> None:
    """EPIPE stops nothing; the sequence numbers say how many records are gone."""
    source = reader(fake)
    fake.log("before")
    source.read()
    fake.overrun(41)
    fake.log("after")
    assert texts(source.read()) == ["after"]
    assert source.lost == 41
    fake.fail(errno.EPIPE)
    fake.log("and on")
    assert texts(source.read()) == ["and on"]
    assert source.lost == 42
    assert fake.opened == 1


def test_overrun_before_the_first_record_is_one_at_least(fake: FakeKmsg) -> None:
    """Without an earlier number an overrun counts as one record."""
    source = reader(fake)
    fake.fail(errno.EPIPE)
    fake.log("first", sequence=900)
    assert texts(source.read()) == ["first"]
    assert source.lost == 1


def test_failed_device_is_opened_again_without_repeats(fake: FakeKmsg) -> None:
    """After an error the device is opened anew and goes on behind what was read."""
    source = reader(fake)
    fake.log("one")
    source.read()
    fake.fail(errno.EIO)
    with pytest.raises(OSError, match="as told"):
        source.read()
    fake.log("two")
    assert texts(source.read()) == ["two"]
    assert (fake.opened, source.lost) == (2, 0)


def test_end_of_the_stream_is_an_error_and_not_silence(fake: FakeKmsg) -> None:
    """A log that ends says so, and is opened again at the next read."""
    source = reader(fake)
    fake.log("one")
    source.read()
    fake.end()
    with pytest.raises(OSError, match="ended"):
        source.read()
    fake.log("two")
    assert texts(source.read()) == ["two"]


def test_missing_device_is_the_error_of_the_read(tmp_path: Path) -> None:
    """Without the device a read fails with its errno, every time."""
    source = Kmsg(tmp_path / "kmsg")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            source.read()


def test_reader_goes_on_behind_a_known_position(fake: FakeKmsg) -> None:
    """A position of an earlier reader is where a new one begins; what is gone between is lost."""
    for text in ("one", "two", "three"):
        fake.log(text)
    first = reader(fake)
    first.read()
    assert first.position == Position(2, 2000)
    fake.log("four")
    again = reader(fake, after=Position(1, 1000))
    assert texts(again.read()) == ["three", "four"]
    assert again.lost == 0
    fake.ring.clear()
    fake.overrun(5)
    fake.log("ten", sequence=9)
    late = reader(fake, after=Position(3, 3000))
    assert texts(late.read()) == ["ten"]
    assert late.lost == 5


def test_malformed_records_are_counted_and_passed_over(fake: FakeKmsg) -> None:
    """What is no record costs the ones around it nothing."""
    source = reader(fake)
    fake.log("one")
    fake.write(b"no record at all\n")
    fake.log("two")
    assert texts(source.read()) == ["one", "two"]
    assert (source.malformed, source.lost) == (1, 0)


def test_flood_is_read_in_batches(fake: FakeKmsg) -> None:
    """One read takes a bounded number of records and leaves the rest for the next."""
    numbers = iter(range(BATCH + 7))

    def flood(fd: int, size: int) -> bytes:
        number = next(numbers, None)
        if number is None:
            raise BlockingIOError
        return f"4,{number},{number},-;line\n".encode()

    source = Kmsg(Path("/dev/kmsg"), opener=fake.opener, reader=flood)
    assert len(source.read()) == BATCH
    assert len(source.read()) == 7
    assert source.lost == 0
    source.close()
