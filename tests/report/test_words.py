"""The sentences: the finding, what to do next, and the summary on a terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from rich.console import Console

from support.evidence import build_evidence
from tailwatch.chaos.judge import judge
from tailwatch.report import print_summary, summary_table
from tailwatch.report.advice import next_actions
from tailwatch.report.words import finding
from tailwatch.verdicts import Check, ReportDocument, Verdict

if TYPE_CHECKING:
    from report.conftest import Reported


def _copy(document: ReportDocument) -> ReportDocument:
    return msgspec.json.decode(msgspec.json.encode(document), type=ReportDocument)


def _with(document: ReportDocument, verdict: Verdict, **first: Any) -> ReportDocument:
    changed = _copy(document)
    changed.verdict = verdict
    changed.reason = "Because."
    changed.experiments[0] = msgspec.structs.replace(
        changed.experiments[0], verdict=verdict, **first
    )
    return changed


def test_finding_of_a_pass_names_the_worst_numbers(reported: Reported) -> None:
    """A pass says how long the slowest detection and recovery took, and the work lost."""
    sentence = finding(reported.document).replace("\N{NARROW NO-BREAK SPACE}", " ")
    noticed = max(o.detection_seconds or 0 for o in reported.document.experiments)
    assert sentence.startswith("4 of 4 experiments passed: every fault was noticed within")
    assert f"{noticed:.1f} s" in sentence
    assert sentence.count(".") - sentence.count(".0") >= 1
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("verdict", "first", "said"),
    [
        ("DEVIATED", {}, "3 of 4 experiments passed; rank-slow deviated from the hypothesis."),
        ("UNDO_FAILED", {"undo": "failed"}, "rank-slow left a fault behind"),
        ("ABORTED", {"injected_at": None}, "rank-slow was not tried."),
        ("ABORTED", {}, "rank-slow ended early."),
        ("INCONCLUSIVE", {}, "rank-slow proved nothing either way."),
    ],
)
def test_finding_names_what_did_not_pass(
    reported: Reported, verdict: Verdict, first: dict[str, Any], said: str
) -> None:
    """What did not pass is named with what became of it."""
    assert said in finding(_with(reported.document, verdict, **first))


def test_every_failed_check_leads_to_something_to_do(reported: Reported) -> None:
    """Each failed check gives an action with its facts and a command; alerts lead to runbooks."""
    names = [check.name for check in reported.document.experiments[0].checks]
    failed = [Check(name=name, passed=False, detail=f"fact of {name}") for name in names]
    document = _with(reported.document, "DEVIATED", checks=failed)
    actions = next_actions(document, "run/evidence")
    text = " ".join(action.text for action in actions)
    commands = [command for action in actions for command in action.commands]
    for name in names:
        assert f"fact of {name}" in text
    assert "alerts/runbooks/RankStraggler.md" in commands
    assert "tailwatch demo --only rank-slow" in commands
    assert commands[-1] == "tailwatch gameday judge run/evidence"


@pytest.mark.parametrize("verdict", ["DEVIATED", "INCONCLUSIVE", "ABORTED", "UNDO_FAILED"])
def test_every_verdict_leads_to_something_to_do(reported: Reported, verdict: Verdict) -> None:
    """Even without a failed check there is more to do than to judge again."""
    actions = next_actions(_with(reported.document, verdict, checks=[]), "run/evidence")
    assert len(actions) > 1
    assert all(action.title and action.text for action in actions)


def test_a_pass_is_followed_by_the_controls(reported: Reported) -> None:
    """After a pass the reader is told how to see that the judge can say no."""
    actions = next_actions(reported.document, "run/evidence")
    commands = {command for action in actions for command in action.commands}
    assert "tailwatch demo --control rule-removed" in commands


def test_summary_has_a_line_for_each_experiment(reported: Reported) -> None:
    """The plain summary starts with the verdict and names each experiment once with its numbers."""
    lines = summary_table(reported.document).splitlines()
    assert lines[0].startswith("PASSED  4 of 4 experiments passed")
    for outcome in reported.document.experiments:
        (line,) = [line for line in lines if line.startswith(outcome.name)]
        assert outcome.verdict in line


def test_summary_gives_the_reason_of_what_did_not_pass(tmp_path: Path) -> None:
    """A reason stands once under the table."""
    evidence = build_evidence(tmp_path / "evidence", faults=["rank-slow"], inject=False)
    document = judge(evidence)
    text = summary_table(document)
    assert text.count(document.experiments[0].reason) == 1
    assert "unknown" in text


@pytest.mark.parametrize("width", [60, 100, 160])
def test_terminal_summary_fits_any_width(reported: Reported, width: int) -> None:
    """On a terminal of any width all experiments and verdicts are there, within the width."""
    out = io.StringIO()
    print_summary(reported.document, Console(file=out, width=width, no_color=True))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    if width >= 100:
        for outcome in reported.document.experiments:
            assert outcome.name[:8] in out.getvalue()
