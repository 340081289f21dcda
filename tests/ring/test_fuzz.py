"""The ring under anything: chance writers and readers, and files full of nonsense."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from support.ranks import ring
from tailwatch.ring import RingReader, TornRing

_ACTIONS = st.lists(st.one_of(st.integers(1, 30), st.just("read")), max_size=40)


@settings(max_examples=150, deadline=None)
@given(slots=st.integers(1, 12), actions=_ACTIONS)
def test_every_record_is_returned_or_counted(slots: int, actions: list[int | str]) -> None:
    """Whatever the order of writing and reading: in order, each once, and the gaps are the lost."""
    with tempfile.TemporaryDirectory() as directory:
        writer = ring(Path(directory), mark_slots=1, record_slots=slots)
        reader = RingReader(writer.path)
        written = 0
        seen: list[int] = []
        for action in [*actions, "read"]:
            if isinstance(action, int):
                for _ in range(action):
                    written += 1
                    writer.append(str(written).encode())
                continue
            before = reader.lost
            found = [int(payload) for payload in reader.read_records()]
            missing = written - (seen[-1] if seen else 0) - len(found)
            if found:
                assert found == list(range(written - len(found) + 1, written + 1))
                assert reader.lost - before == missing
            seen += found
        assert len(seen) + reader.lost == written
        assert reader.sequence == written
        reader.close()
        writer.close()


@settings(max_examples=150, deadline=None)
@given(
    records=st.integers(0, 20),
    patches=st.lists(st.tuples(st.integers(0, 20_000), st.binary(min_size=1, max_size=64))),
    cut=st.none() | st.integers(0, 21_000),
)
def test_nonsense_never_raises_and_never_invents(
    records: int, patches: list[tuple[int, bytes]], cut: int | None
) -> None:
    """A file with any bytes in it gives TornRing or records that were written, in order."""
    with tempfile.TemporaryDirectory() as directory:
        writer = ring(Path(directory), mark_slots=4, record_slots=8)
        for number in range(1, records + 1):
            writer.append(f"record {number}".encode())
        data = bytearray(writer.path.read_bytes())
        for offset, patch in patches:
            data[offset : offset + len(patch)] = patch
        path = Path(directory) / "damaged.ring"
        path.write_bytes(bytes(data[:cut]))
        try:
            reader = RingReader(path)
        except TornRing:
            return
        found = [int(payload.split()[1]) for payload in reader.read_records()]
        assert found == sorted(set(found))
        assert set(found) <= set(range(1, records + 1))
        reader.last_mark()
        reader.close()
        writer.close()
