"""The set-up: done once, resumed where it stopped, clear when it cannot.

These run the real scripts in a copy of the checkout whose lock holds one package only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.checkout import ROOT, copy


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the set-up needs, with a lock file of setuptools alone, set up."""
    tree = copy(tmp_path_factory.mktemp("house") / "checkout", "tools", "src/tailwatch/cli")
    for name in ("__init__", "errors", "tools"):
        copy(tree, f"src/tailwatch/{name}.py")
    copy(tree, "pyproject.toml", "LICENSE")
    (tree / "README.md").write_text("# Tailwatch\n")
    lock = (ROOT / "requirements.lock").read_text()
    entry = re.search(r"^setuptools==(?:.*\\\n)+.*\n", lock, re.MULTILINE)
    assert entry
    (tree / "requirements.lock").write_text(entry[0])
    first = _setup(tree)
    assert first.returncode == 0, first.stderr
    said = [line for line in first.stderr.splitlines() if not line.endswith(" ...")]
    assert said[0].startswith("making .venv with ")
    assert said[1:] == ["installing uv", "installing packages", "installing tailwatch"]
    return tree


def _setup(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", tree / "tools" / "setup.sh"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _forget_setuptools(tree: Path) -> None:
    (tree / ".venv" / ".setup" / "packages").unlink()
    for path in tree.glob(".venv/lib/python*/site-packages/setuptools*"):
        shutil.rmtree(path)


def test_done_is_done(checkout: Path) -> None:
    """A second run says and does nothing."""
    assert _setup(checkout).stderr == ""


def test_interrupted_setup_goes_on(checkout: Path) -> None:
    """Only the part that has not finished, and what stands on it, is done again."""
    (checkout / ".venv" / ".setup" / "tailwatch").unlink()
    assert _setup(checkout).stderr == "installing tailwatch\n"
    with (checkout / "requirements.lock").open("a") as lock:
        lock.write("\n")
    assert _setup(checkout).stderr == "installing packages\ninstalling tailwatch\n"
    assert (checkout / ".venv" / "bin" / "tailwatch").exists()


def test_failed_download_is_resumed(checkout: Path) -> None:
    """A package that is not as locked stops the set-up with the reason; mended, it goes on."""
    lock = checkout / "requirements.lock"
    good = lock.read_text()
    _forget_setuptools(checkout)
    lock.write_text(re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", good))
    broken = _setup(checkout)
    lock.write_text(good)
    assert broken.returncode == 1
    assert "setup: installing packages failed (exit status" in broken.stderr
    assert "hash" in broken.stderr.lower()
    assert "Instead, pip alone does it too" in broken.stderr
    assert "Traceback" not in broken.stderr

    mended = _setup(checkout)
    assert mended.returncode == 0, mended.stderr
    assert mended.stderr == "installing packages\ninstalling tailwatch\n"


def test_pip_settings_reach_uv(checkout: Path) -> None:
    """An index that pip is told to use is the one that packages are asked from, and no other."""
    _forget_setuptools(checkout)
    outcome = _setup(
        checkout,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_FIND_LINKS="",
        UV_NO_CACHE="1",
        UV_HTTP_RETRIES="0",
    )
    assert outcome.returncode == 1
    assert "127.0.0.1:9" in outcome.stderr
    assert _setup(checkout).returncode == 0


def test_broken_environment_is_made_again(checkout: Path) -> None:
    """A .venv whose Python is gone, as after an upgrade of the system, is made anew."""
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/such/python")
    outcome = _setup(checkout)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr.startswith("making .venv with ")


def test_no_python_is_said(checkout: Path) -> None:
    """Without a Python from 3.11 the message says which is wanted and how to name one."""
    (checkout / ".venv").rename(checkout / "away")
    outcome = _setup(checkout, PATH="/no/such/folder", PYTHON="")
    (checkout / "away").rename(checkout / ".venv")
    assert outcome.returncode == 1
    assert "no Python from 3.11 to 3.14 found on PATH" in outcome.stderr
    assert "make PYTHON=" in outcome.stderr
