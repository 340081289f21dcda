"""Names of checkpoints and how they change, what may be deleted, and the audit of a directory."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from support.checkpoints import flip, write_plain
from tailwatch.errors import UsageError
from tailwatch.integrity import (
    EXIT_CODES,
    Policy,
    audit,
    candidates,
    commit,
    parse_name,
    quarantine,
    read_manifest,
    remove_leftovers,
    retain,
    step_name,
    temporary_name,
    verify,
)


def checkpoints(root: Path, steps: list[int]) -> Path:
    """Write committed checkpoints of some steps."""
    root.mkdir(exist_ok=True)
    for step in steps:
        write_plain(root / step_name(step), {"a": bytes([step]) * 100, "b": b"b"}, step=step)
    return root


def names(root: Path) -> list[str]:
    """Return what lies in a directory, sorted."""
    return sorted(path.name for path in root.iterdir())


def test_names_say_step_state_and_attempt() -> None:
    """A name tells committed, temporary and quarantined apart; other names are none of ours."""
    parsed = parse_name(Path("step-00000040.tmp-a0002"))
    assert parsed is not None
    assert (parsed.step, parsed.state, parsed.attempt) == (40, "temporary", 2)
    committed, bad = parse_name(Path("step-00000040")), parse_name(Path("step-00000040.bad-zeros"))
    assert committed is not None
    assert committed.state == "committed"
    assert bad is not None
    assert bad.state == "quarantined"
    for other in ("step-40", "step-00000040.old", "latest", "global_step40", "step-00000040.bad-"):
        assert parse_name(Path(other)) is None


def test_candidates_come_newest_first(tmp_path: Path) -> None:
    """Order is by number of the step, not by its digits, and committed ones come first."""
    for name in ("step-99999999", "step-100000000", "step-00000002.bad-zeros", "step-00000002"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000003.tmp-a0001").mkdir()
    assert [c.name for c in candidates(tmp_path)] == [
        "step-100000000",
        "step-99999999",
        "step-00000003.tmp-a0001",
        "step-00000002",
        "step-00000002.bad-zeros",
    ]
    assert candidates(tmp_path / "nothing") == []


def test_commit_never_replaces_a_step(tmp_path: Path) -> None:
    """A step that is committed stays as it is; the second commit is refused."""
    temporary = tmp_path / temporary_name(5, 1)
    manifest = write_plain(temporary, {"a": b"first"}, step=5)
    assert commit(temporary, manifest) == tmp_path / "step-00000005"
    again = tmp_path / temporary_name(5, 2)
    second = write_plain(again, {"a": b"other"}, step=5)
    with pytest.raises(FileExistsError):
        commit(again, second)
    assert (tmp_path / "step-00000005" / "a").read_bytes() == b"first"
    assert verify(tmp_path / "step-00000005").verdict == "valid"


def test_quarantine_renames_and_never_deletes(tmp_path: Path) -> None:
    """Each quarantine gets a name of its own with the reason in it, and keeps all its files."""
    moved = []
    for _ in range(3):
        checkpoints(tmp_path, [8])
        moved.append(quarantine(tmp_path / "step-00000008", "Mixed step").name)
    assert moved == [
        "step-00000008.bad-mixed-step",
        "step-00000008.bad-mixed-step-2",
        "step-00000008.bad-mixed-step-3",
    ]
    assert names(tmp_path) == sorted(moved)
    assert all(len(names(tmp_path / name)) == 3 for name in moved)


def test_leftovers_of_this_and_older_attempts_go(tmp_path: Path) -> None:
    """Temporary directories go unless a later attempt than ours writes them."""
    checkpoints(tmp_path, [1])
    for name in ("step-00000002.tmp-a0001", "step-00000002.tmp-a0003", "step-00000001.tmp-retired"):
        (tmp_path / name).mkdir()
    removed = remove_leftovers(tmp_path, 2)
    assert sorted(removed) == ["step-00000001.tmp-retired", "step-00000002.tmp-a0001"]
    assert names(tmp_path) == ["step-00000001", "step-00000002.tmp-a0003"]


def test_retention_keeps_the_newest_few(tmp_path: Path) -> None:
    """The newest ones stay, older ones go, quarantined ones are not touched."""
    checkpoints(tmp_path, [1, 2, 3, 4])
    quarantine(tmp_path / "step-00000002", "zeros")
    assert retain(tmp_path, Policy(keep_last=2), verified_step=4) == ["step-00000001"]
    assert names(tmp_path) == ["step-00000002.bad-zeros", "step-00000003", "step-00000004"]
    assert retain(tmp_path, Policy(keep_last=2), verified_step=4) == []


def test_retention_never_deletes_the_last_good_one(tmp_path: Path) -> None:
    """With everything newer damaged, the newest valid checkpoint stays, however old it is."""
    checkpoints(tmp_path, [1, 2, 3, 4, 5])
    for step in (3, 4, 5):
        flip(tmp_path / step_name(step) / "a", 10)
    assert retain(tmp_path, Policy(keep_last=1)) == ["step-00000001"]
    assert "step-00000002" in names(tmp_path)
    flip(tmp_path / "step-00000002" / "a", 10)
    assert retain(tmp_path, Policy(keep_last=1)) == []


def test_retention_does_not_count_what_is_broken(tmp_path: Path) -> None:
    """A checkpoint without its manifest takes no place among those kept, and is not deleted."""
    checkpoints(tmp_path, [1, 2, 3])
    (tmp_path / "step-00000002" / "MANIFEST.json").unlink()
    assert retain(tmp_path, Policy(keep_last=2), verified_step=3) == []
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]


def test_audit_says_what_would_be_loaded_and_lost(tmp_path: Path) -> None:
    """The verdict is the newest checkpoint's; what would be loaded and lost is stated."""
    root = checkpoints(tmp_path / "checkpoints", [10, 20, 30])
    flip(root / "step-00000030" / "a", 70)
    result = audit(root)
    assert (result.verdict, result.latest, result.would_load) == (
        "corrupt",
        "step-00000030",
        "step-00000020",
    )
    assert result.steps_lost == 10
    newest = result.candidates[0]
    assert newest.reasons[0].startswith("step-00000030/a, block 1: changed")
    assert [(f.name, f.faults, f.blocks) for f in newest.files] == [
        ("a", ["changed"], [1]),
        ("b", [], []),
    ]
    assert audit(tmp_path) == msgspec.structs.replace(result, path=str(tmp_path))
    assert msgspec.json.decode(msgspec.json.encode(result), type=type(result)) == result


def test_audit_of_one_checkpoint(tmp_path: Path) -> None:
    """A single checkpoint can be named, also a temporary or a quarantined one."""
    root = checkpoints(tmp_path, [10, 20])
    assert audit(root / "step-00000010").verdict == "valid"
    (root / "step-00000020").rename(root / "step-00000020.tmp-a0001")
    uncommitted = audit(root / "step-00000020.tmp-a0001")
    assert (uncommitted.verdict, uncommitted.would_load) == ("incomplete", None)
    assert "never committed" in uncommitted.candidates[0].reasons[0]
    assert audit(root).verdict == "valid"


def test_audit_of_what_is_not_ours(tmp_path: Path) -> None:
    """Nothing there is wrong usage, no files are empty, files of others are unverifiable."""
    with pytest.raises(UsageError, match="no such directory"):
        audit(tmp_path / "nothing")
    (tmp_path / "checkpoints").mkdir()
    assert audit(tmp_path).verdict == "empty"
    assert audit(tmp_path / "checkpoints").verdict == "empty"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.bin").write_bytes(b"x")
    for path in (foreign, foreign / "notes.bin"):
        result = audit(path)
        assert (result.verdict, EXIT_CODES[result.verdict]) == ("unverifiable", 3)


def test_a_manifest_states_its_bytes(tmp_path: Path) -> None:
    """The bytes of a checkpoint are the sum over its files."""
    checkpoints(tmp_path, [1])
    assert read_manifest(tmp_path / "step-00000001").total_bytes == 101
