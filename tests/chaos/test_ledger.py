"""The undo ledger survives what it is for: a runner that is killed."""

from __future__ import annotations

from pathlib import Path

from tailwatch import control
from tailwatch.chaos.ledger import Ledger, damaged_lines, read_ledger, undo_left_open
from tailwatch.control import Order, RankFault
from tailwatch.integrity import block_digest


def test_an_entry_is_open_until_it_is_undone(tmp_path: Path) -> None:
    """What was opened is left open for whoever comes next, and closed only by an undo."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    entry = ledger.open("one", "none", {})
    assert [e.id for e in ledger.left_open()] == [entry.id]
    ledger.undo(entry)
    assert ledger.left_open() == []
    assert [e.state for e in read_ledger(ledger.path)] == ["open", "undone"]


def test_a_line_cut_by_a_kill_is_no_entry(tmp_path: Path) -> None:
    """An entry whose line is not whole was never acted upon."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    entry = ledger.open("one", "none", {})
    with ledger.path.open("ab") as file:
        file.write(b'{"id":"half')
    assert [e.id for e in ledger.left_open()] == [entry.id]


def test_an_undo_that_fails_stays_open_with_the_reason(tmp_path: Path) -> None:
    """A failed undo is not forgotten: a later doctor tries again."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    missing = {"orders": str(tmp_path / "none"), "order": "x"}
    settled = ledger.undo(ledger.open("one", "clear-order", missing))
    assert settled.state == "failed"
    assert "FileNotFoundError" in settled.reason
    assert len(ledger.left_open()) == 1
    (tmp_path / "none").mkdir()
    assert ledger.undo(ledger.left_open()[0]).state == "undone"


def test_clearing_a_fault_order_ends_it_for_all_attempts(tmp_path: Path) -> None:
    """After the undo no fault stands, and a second undo is harmless."""
    far = 2**62
    order = Order(
        id=control.new_order_id(), kind="fault", by="test", reason="", deadline_ns=far, rank=1,
        fault=RankFault(delay_seconds=1.0), fault_until_ns=far,
    )  # fmt: skip
    control.submit(tmp_path, order)
    assert [o.id for o in control.standing_faults(tmp_path, 0)] == [order.id]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    entry = ledger.open("slow", "clear-order", {"orders": str(tmp_path), "order": order.id})
    for _ in range(2):
        assert ledger.undo(entry).state == "undone"
    assert control.standing_faults(tmp_path, 0) == []


def test_a_flipped_byte_is_restored_and_nothing_else(tmp_path: Path) -> None:
    """The byte comes back only over the very damage; a file written anew is left alone."""
    path = tmp_path / "__0_0.distcp"
    path.write_bytes(bytes(range(64)))
    whole = block_digest(path, 0)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    arguments = {"file": str(path), "offset": 7, "byte": 7, "block": 0, "expected": whole}
    entry = ledger.open("corrupt", "restore-byte", arguments)
    assert "nothing to restore" in ledger.undo(entry).reason

    path.write_bytes(bytes([*range(7), 7 ^ 1, *range(8, 64)]))
    assert ledger.undo(entry).reason == "byte restored"
    assert path.read_bytes() == bytes(range(64))

    other = bytes(64)
    path.write_bytes(other)
    assert "left alone" in ledger.undo(entry).reason
    assert path.read_bytes() == other
    path.unlink()
    assert "set aside or gone" in ledger.undo(entry).reason


def test_a_damaged_line_in_the_middle_hides_no_other_entry(tmp_path: Path) -> None:
    """Entries around a damaged line are still undone, and the damage is counted."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    first = ledger.open("one", "none", {})
    with ledger.path.open("ab") as file:
        file.write(b"\x00\xffnonsense\n")
    second = ledger.open("two", "none", {})
    assert [e.id for e in ledger.left_open()] == [second.id, first.id]
    assert damaged_lines(ledger.path) == 1
    assert [e.state for e in undo_left_open(ledger)] == ["undone", "undone"]
