"""The corruption matrix, a sample of it; `python bench/checkpoint.py matrix` does 10,000 trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.corruption import FAULTS, clean_run, clean_trial, trial
from tailwatch.runs import RunDirectory

TRIALS = 500
CLEAN_TRIALS = 50


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with two steps, saved by three ranks."""
    return clean_run(tmp_path_factory.mktemp("clean"))


@pytest.mark.parametrize("name", FAULTS)
def test_no_fault_is_loaded(clean: RunDirectory, tmp_path: Path, name: str) -> None:
    """Whatever is done to the newest checkpoint, the one before is loaded, the fault named."""
    for seed in range(-(-TRIALS // len(FAULTS))):
        assert trial(clean, tmp_path / str(seed), name, seed) == [], f"{name}, seed {seed}"


def test_nothing_clean_is_refused(clean: RunDirectory, tmp_path: Path) -> None:
    """A copy, and a copy whose bytes were flipped and flipped back, is loaded as it is."""
    for seed in range(CLEAN_TRIALS):
        assert clean_trial(clean, tmp_path / str(seed), seed) == [], f"seed {seed}"
