"""From rings to the step log: each record once, and none that contradicts its ring."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec
import pytest

from support.ranks import append_steps, event, ring, step_record
from tailwatch.agents.node.inbox import RingInbox
from tailwatch.agents.node.senders import Allowance, OpenRing
from tailwatch.records import Record, StepRecord, encode
from tailwatch.steplog import read_steplog


def inbox(root: Path, *, remove_seconds: float = 30.0) -> RingInbox:
    """Return an inbox of node-0 on `root/rings`, with what is there already drained."""
    (root / "rings").mkdir(exist_ok=True)
    path = root / "node-0.steplog"
    made = RingInbox(root / "rings", path, "node-0", lambda *_: None, remove_seconds=remove_seconds)
    made.scan()
    made.drain()
    return made


def logged(root: Path) -> list[Record]:
    """Return what the step log holds."""
    return read_steplog(root / "node-0.steplog")


def steps(root: Path, rank: int = 0) -> list[int]:
    """Return the steps of one rank in the log, in order."""
    return [r.step for r in logged(root) if isinstance(r, StepRecord) and r.rank == rank]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with an empty `rings` in it."""
    (tmp_path / "rings").mkdir()
    return tmp_path


def test_records_of_all_rings_are_logged(root: Path) -> None:
    """Steps and events of every ring arrive in the log byte for byte."""
    first, second = ring(root / "rings", 0), ring(root / "rings", 1)
    box = inbox(root)
    append_steps(first, 0, 1, 3)
    second.append(encode(event("checkpoint_verified", step=2, rank=1)))
    append_steps(second, 1, 1, 2)
    assert box.drain() == 6
    assert box.drain() == 0
    assert steps(root, 0) == [1, 2, 3]
    assert steps(root, 1) == [1, 2]
    assert step_record(1, 2) in logged(root)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "another"}, "identity"),
        ({"attempt": 2}, "identity"),
        ({"rank": 3}, "identity"),
        ({"world_size": 1}, "identity"),
        ({"node": "node-1"}, "identity"),
        ({"duration_ns": -1}, "value"),
        ({"duration_ns": 1 << 62}, "value"),
        ({"waits_ns": {"ep": -5}}, "value"),
        ({"phases_ns": {"data": 1 << 60}}, "value"),
        ({"step": -1}, "value"),
        ({"expert_tokens": [-1]}, "value"),
        ({"first_expert": 1 << 40}, "value"),
    ],
)
def test_record_that_lies_is_dropped(root: Path, changes: dict[str, object], reason: str) -> None:
    """A record that contradicts its ring, its node or what is possible is counted and dropped."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    writer.append(encode(step_record(0, 1)))
    writer.append(encode(msgspec.structs.replace(step_record(0, 2), **changes)))
    writer.append(encode(step_record(0, 3)))
    box.drain()
    assert steps(root) == [1, 3]
    assert {k: v for k, v in box.rejected.items() if v} == {reason: 1}


def test_event_of_another_rank_is_dropped(root: Path) -> None:
    """An event that names another rank or node than its ring is dropped."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    for changes in ({"rank": 1}, {"node": "node-1"}, {"attempt": 9}):
        writer.append(encode(event("start", **changes)))
    writer.append(b"\xff\x00 no record")
    writer.append(encode(event("start", rank=None, node=None)))
    box.drain()
    assert len(logged(root)) == 1
    assert box.rejected == {"unreadable": 1, "identity": 3, "value": 0}


@pytest.mark.parametrize(("before", "after"), [(0, 5), (5, 0), (5, 5), (250, 100), (600, 200)])
def test_restart_neither_loses_nor_repeats(root: Path, before: int, after: int) -> None:
    """A new agent on the same log goes on exactly behind its last record, also after laps."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    step = 0
    while step < before:
        size = min(100, before - step)
        append_steps(writer, 0, step + 1, step + size)
        step += size
        box.drain()
    box.close()
    append_steps(writer, 0, before + 1, before + after)
    again = inbox(root)
    assert steps(root) == list(range(1, before + after + 1))
    assert again.lost == box.lost == 0
    append_steps(writer, 0, before + after + 1, before + after + 3)
    assert again.drain() == 3


def test_restart_after_being_lapped_counts_the_gap(root: Path) -> None:
    """What was overwritten while no agent ran is counted as lost, exactly."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    append_steps(writer, 0, 1, 100)
    box.drain()
    box.close()
    append_steps(writer, 0, 101, 500)
    again = inbox(root)
    assert steps(root) == [*range(1, 101), *range(245, 501)]
    assert again.lost == 144


def test_rejected_records_stay_rejected_after_a_restart(root: Path) -> None:
    """Refused records do not shift where a restarted agent goes on."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    append_steps(writer, 0, 1, 2)
    writer.append(encode(step_record(3, 3)))
    append_steps(writer, 0, 4, 5)
    box.drain()
    box.close()
    append_steps(writer, 0, 6, 7)
    inbox(root)
    assert steps(root) == [1, 2, 4, 5, 6, 7]


def test_torn_log_is_mended_from_the_ring(root: Path) -> None:
    """A frame cut by a kill in the middle of an append is written again from the ring."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    append_steps(writer, 0, 1, 5)
    box.drain()
    box.close()
    path = root / "node-0.steplog"
    os.truncate(path, path.stat().st_size - 7)
    inbox(root)
    assert steps(root) == [1, 2, 3, 4, 5]


def test_full_disk_keeps_records(root: Path) -> None:
    """While the log takes nothing no ring is read further, and afterwards nothing is missing."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    append_steps(writer, 0, 1, 2)
    box.drain()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (box.log.end + 100, hard))
    try:
        append_steps(writer, 0, 3, 4)
        for _ in range(3):
            with pytest.raises(OSError, match=r"steplog|File too large"):
                box.drain()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append_steps(writer, 0, 5, 6)
    box.drain()
    assert steps(root) == [1, 2, 3, 4, 5, 6]
    assert box.records == 6


def test_superseded_ring_is_removed_once_it_is_quiet(root: Path) -> None:
    """A ring of an older attempt is drained, and removed when it has been quiet for long enough."""
    old = ring(root / "rings", 0)
    append_steps(old, 0, 1, 2)
    box = inbox(root, remove_seconds=0.0)
    assert old.path.exists()
    new = ring(root / "rings", 0, attempt=2)
    append_steps(old, 0, 3, 3)
    box.scan()
    box.scan()
    assert not old.path.exists()
    assert new.path.exists()
    assert steps(root) == [1, 2, 3]
    assert list(box.rings) == [new.path.name]


def test_superseded_ring_stays_for_a_while(root: Path) -> None:
    """Without that long quiet the ring of the older attempt stays."""
    old = ring(root / "rings", 0)
    box = inbox(root)
    ring(root / "rings", 0, attempt=2)
    box.scan()
    box.drain()
    box.scan()
    assert old.path.exists()


def test_ring_that_vanishes_is_read_to_its_end(root: Path) -> None:
    """What was appended before a ring was unlinked is logged."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    append_steps(writer, 0, 1, 3)
    writer.path.unlink()
    box.scan()
    assert steps(root) == [1, 2, 3]
    assert box.rings == {}


def test_ring_made_anew_under_its_name_is_read_from_its_start(root: Path) -> None:
    """Another file under the same name is another ring."""
    append_steps(ring(root / "rings", 0), 0, 1, 3)
    box = inbox(root)
    append_steps(ring(root / "rings", 0), 0, 4, 4)
    box.scan()
    box.drain()
    assert steps(root) == [1, 2, 3, 4]


def test_ring_made_anew_is_first_read_to_its_end(root: Path) -> None:
    """What the old file of a ring held is logged before the new one under its name is read."""
    old = ring(root / "rings", 0)
    box = inbox(root)
    append_steps(old, 0, 1, 3)
    append_steps(ring(root / "rings", 0), 0, 4, 4)
    box.scan()
    box.drain()
    assert steps(root) == [1, 2, 3, 4]


def test_ring_that_cannot_be_looked_at_leaves_nothing_open(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring whose file goes away while it is opened costs no descriptor."""
    writer = ring(root / "rings", 0)
    before = len(os.listdir("/proc/self/fd"))

    def gone(path: Path, **_: object) -> os.stat_result:
        raise FileNotFoundError(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", gone)
        with pytest.raises(FileNotFoundError):
            OpenRing(writer.path, "", Allowance())
    assert len(os.listdir("/proc/self/fd")) == before


def test_damaged_log_is_mended_from_the_ring(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A frame damaged in the middle is written again from its ring; none behind it is lost."""
    writer = ring(root / "rings", 0)
    box = inbox(root)
    append_steps(writer, 0, 1, 5)
    box.drain()
    box.close()
    path = root / "node-0.steplog"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    inbox(root)
    assert steps(root) == [1, 2, 4, 5, 3]
    assert "damaged from" in capfd.readouterr().err


def test_nonsense_beside_rings_disturbs_none(root: Path) -> None:
    """Files, directories and pipes that are no rings are named, and the rings are read."""
    rings = root / "rings"
    (rings / "text.ring").write_text("hello")
    (rings / "empty.ring").touch()
    (rings / "folder.ring").mkdir()
    os.mkfifo(rings / "pipe.ring")
    (rings / "gone.ring").symlink_to(rings / "nowhere")
    append_steps(ring(rings, 0), 0, 1, 2)
    box = inbox(root)
    assert steps(root) == [1, 2]
    assert {"text.ring", "empty.ring", "folder.ring", "pipe.ring"} <= set(box.broken)
    (rings / "text.ring").unlink()
    box.scan()
    assert "text.ring" not in box.broken
