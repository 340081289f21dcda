"""What is installed is what lies in the tree."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.checkout import ROOMS, ROOT, copy, files


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_links(room: str) -> None:
    """Each room lies at the top and is linked, by a relative link, into the package."""
    link = ROOT / "src" / "tailwatch" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../../{room}"
    assert (ROOT / room / "__init__.py").is_file()


def test_no_other_links() -> None:
    """Nothing but the rooms is a link."""
    links = {name for name in files() if (ROOT / name).is_symlink()}
    assert links == {f"src/tailwatch/{room}" for room in ROOMS}


def test_wheel_holds_the_tree(tmp_path: Path) -> None:
    """The wheel holds each file of src and the rooms once, and nothing else."""
    parts = ("src", *ROOMS)
    tree = copy(tmp_path / "tree", *parts, "pyproject.toml", "README.md", "LICENSE")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, tree],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    built = {name for name in names if not name.startswith("tailwatch-")}
    expected = {
        name.removeprefix("src/") if name.startswith("src/") else f"tailwatch/{name}"
        for name in files(*parts)
        if not (ROOT / name).is_symlink()
    }
    assert built == expected
