"""Evidence of a whole game day, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.evidence import build_evidence


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evidence of all four faults; tests that edit it take `evidence`."""
    return build_evidence(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def evidence(whole: Path, tmp_path: Path) -> Path:
    """A copy of the whole evidence, to be edited."""
    return Path(shutil.copytree(whole, tmp_path / "evidence"))
