"""What is installed is what lies in the tree."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def _installed_with(*extras: str) -> set[str]:
    """Return the packages that come with tailwatch and these extras, by their normal names."""
    found: set[str] = set()
    asked = [("tailwatch", extra) for extra in ("", *extras)]
    while asked:
        name, extra = asked.pop()
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                plain = needed.name.lower().replace("_", "-")
                if plain not in found:
                    found.add(plain)
                    asked += [(plain, wanted) for wanted in ("", *needed.extras)]
    return found


_REFUSING = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ImportError(f"{name} is not installed")
refused = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Refuse())
from tailwatch.agents.node.main import main
sys.exit(main())
"""


def test_node_agent_installs_without_torch(tmp_path: Path) -> None:
    """With its extras the node agent brings no torch, and runs where what it lacks is not there."""
    extras = ("gpu", "pods", "web")
    there = _installed_with(*extras)
    assert {"msgspec", "nvidia-ml-py", "grpcio"} <= there
    assert "torch" not in there
    lacking = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not {owner.lower().replace("_", "-") for owner in owners} & {*there, "tailwatch"}
    }
    assert "torch" in lacking
    done = subprocess.run(
        [
            *(sys.executable, "-c", _REFUSING, ",".join(sorted(lacking)), "--node", "n", "--once"),
            *("--path.sysfs", tmp_path, "--kmsg.path", tmp_path / "none"),
            *("--podresources.socket", tmp_path / "none", "--nvml.library", tmp_path / "none"),
        ],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"tailwatch_source_up" in done.stdout
