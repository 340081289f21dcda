"""What may be removed as scratch, and what may not."""

from __future__ import annotations

import os
from pathlib import Path

from tailwatch.processes import make_scratch, remove_scratch


def test_removed_with_all_it_holds(tmp_path: Path) -> None:
    """A marked directory goes with its content, and a second removal is harmless."""
    path = make_scratch(tmp_path / "s", "t")
    (path / "deep" / "er").mkdir(parents=True)
    (path / "file").write_text("x")
    assert remove_scratch(path, "t") == ""
    assert not path.exists()
    assert remove_scratch(path, "t") == ""


def test_not_without_the_mark_of_the_run(tmp_path: Path) -> None:
    """A directory that is not marked, or marked by another run, stays whole."""
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "file").write_text("x")
    assert "not marked" in remove_scratch(plain, "t")
    assert (plain / "file").exists()
    other = make_scratch(tmp_path / "other", "u")
    assert "another run" in remove_scratch(other, "t")
    assert other.exists()


def test_maker_killed_before_the_mark(tmp_path: Path) -> None:
    """A directory that is empty, or holds only a marker still empty, goes too."""
    bare = tmp_path / "bare"
    bare.mkdir()
    assert remove_scratch(bare, "t") == ""
    assert not bare.exists()
    begun = make_scratch(tmp_path / "begun", "")
    assert remove_scratch(begun, "t") == ""
    assert not begun.exists()


def test_only_below_the_places_for_scratch(tmp_path: Path) -> None:
    """A marked directory elsewhere stays, also when a link or dots make it look right."""
    place = Path("/var/tmp")
    elsewhere = place / f".tailwatch-test-{os.getpid()}"
    make_scratch(elsewhere, "t")
    try:
        link = tmp_path / "link"
        link.symlink_to(elsewhere)
        dotted = Path(f"/tmp/..{elsewhere}")
        for path in (elsewhere, link, dotted):
            assert "not below" in remove_scratch(path, "t")
            assert elsewhere.exists()
        assert remove_scratch(elsewhere, "t", also_below=[place]) == ""
        assert not elsewhere.exists()
    finally:
        remove_scratch(elsewhere, "t", also_below=[place])


def test_links_inside_are_not_followed(tmp_path: Path) -> None:
    """A link in the scratch directory goes, and what it points to stays."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    path = make_scratch(tmp_path / "s", "t")
    (path / "link").symlink_to(kept)
    assert remove_scratch(path, "t") == ""
    assert (kept / "file").exists()
