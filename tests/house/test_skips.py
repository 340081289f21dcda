"""In CI nothing is skipped without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.checkout import ROOT

CASES = """
import pytest

@pytest.mark.gpu
def test_gpu():
    pytest.skip("no GPU")

@pytest.mark.xfail
def test_expected():
    assert False

def test_fine():
    pass
"""
SKIPPING = (
    CASES
    + """
def test_skipped():
    pytest.skip("no reason that counts")
"""
)
SKIPPING_WHOLE = 'import pytest\npytest.importorskip("no_such_module")\n'


def _pytest(tmp_path: Path, source: str, ci: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_cases.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "support.skips", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="the rule is for root")
@pytest.mark.parametrize("tail", ["test_skipped", "whole"])
def test_skip_fails_the_run_in_ci(tmp_path: Path, tail: str) -> None:
    """A skip without the mark gpu, of a test or a whole file, fails the run and is named."""
    outcome = _pytest(tmp_path, SKIPPING if tail == "test_skipped" else SKIPPING_WHOLE, "true")
    assert outcome.returncode != 0
    assert "SKIPPED IN CI" in outcome.stdout


def test_gpu_skips_and_expected_failures_pass(tmp_path: Path) -> None:
    """What needs a GPU may skip, also in CI."""
    assert _pytest(tmp_path, CASES, "true").returncode == 0


def test_skips_are_fine_elsewhere(tmp_path: Path) -> None:
    """On a person's machine a skip is only a skip."""
    assert _pytest(tmp_path, SKIPPING, "").returncode == 0
