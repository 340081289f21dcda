"""The checkout that is under test, and copies of it that a test may spoil."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("agents", "alerts", "chaos", "dashboards", "poc", "trainer")
"""The folders that are linked into src/tailwatch."""


def files(*below: str) -> list[str]:
    """Return the paths of all files and links that git has or would take, relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *below],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {name for name in listing.stdout.split("\0") if name}
    return sorted(name for name in found if (ROOT / name).is_symlink() or (ROOT / name).is_file())


def copy(target: Path, *below: str) -> Path:
    """Copy these parts of the checkout to `target`, links as links; return `target`."""
    for name in files(*below):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target
