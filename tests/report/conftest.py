"""One game day, built, judged and reported once for all tests of the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from support.evidence import build_evidence
from tailwatch.chaos.judge import judge
from tailwatch.report import write_report
from tailwatch.verdicts import ReportDocument


@dataclass(frozen=True)
class Reported:
    """A game day with its evidence, verdict and page."""

    evidence: Path
    document: ReportDocument
    page: Path

    @property
    def html(self) -> str:
        return self.page.read_text("utf-8")


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """All four experiments, passed."""
    root = tmp_path_factory.mktemp("run")
    evidence = build_evidence(root / "evidence")
    document = judge(evidence)
    return Reported(evidence, document, write_report(document, evidence, root / "report"))
