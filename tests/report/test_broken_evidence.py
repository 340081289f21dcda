"""The page for what went wrong: it is always written, and says what is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.evidence import build_evidence
from tailwatch.chaos.judge import judge
from tailwatch.report import summary_table, write_report
from tailwatch.verdicts import SCHEMA, SEVERITY, ReportDocument, Verdict


def _timeline(evidence: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (evidence / "timeline.jsonl").read_bytes().splitlines()]


def _rewrite(evidence: Path, observations: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(o) + "\n" for o in observations)
    (evidence / "timeline.jsonl").write_text(lines)


def _no_steps(evidence: Path) -> None:
    shutil.rmtree(evidence / "steps")


def _one_node_only(evidence: Path) -> None:
    (evidence / "steps" / "node-1.steplog").unlink()


def _garbage(evidence: Path) -> None:
    for path in (evidence / "steps").iterdir():
        path.write_bytes(b"\x00\xff not a frame" * 50)
    for name in ("events.jsonl", "timeline.jsonl", "webhook.jsonl"):
        with (evidence / name).open("ab") as file:
            file.write(b"{broken\n")
    for path in (evidence / "attempts").iterdir():
        path.write_bytes(b"{")


def _aborted(evidence: Path) -> None:
    seen = _timeline(evidence)
    cut = next(i for i, o in enumerate(seen) if o["kind"] == "injected") + 1
    last = {key: seen[cut - 1][key] for key in ("time_ns", "mono_ns")}
    _rewrite(evidence, [*seen[:cut], {**last, "kind": "aborted", "data": {"reason": "Ctrl-C"}}])


def _no_baseline(evidence: Path) -> None:
    seen = _timeline(evidence)
    times = {key: seen[1][key] for key in ("time_ns", "mono_ns")}
    reason = {"reason": "n_eff 120 after 240 s"}
    _rewrite(evidence, [seen[0], {**times, "kind": "baseline_not_met", "data": reason}])
    (evidence / "webhook.jsonl").write_text("")


def _nothing_delivered(evidence: Path) -> None:
    (evidence / "webhook.jsonl").write_text("")


@pytest.mark.parametrize(
    ("edit", "verdict", "said"),
    [
        (_no_steps, "INCONCLUSIVE", "no step log"),
        (_one_node_only, "INCONCLUSIVE", "no step has the records of all its ranks"),
        (_garbage, "INCONCLUSIVE", "holds no whole record"),
        (_aborted, "ABORTED", "Ctrl-C"),
        (_no_baseline, "BASELINE_NOT_MET", "n_eff 120 after 240 s"),
        (_nothing_delivered, "DEVIATED", "not delivered"),
    ],
)
def test_page_says_what_is_missing(
    tmp_path: Path, edit: Callable[[Path], None], verdict: Verdict, said: str
) -> None:
    """Evidence that lacks something gives a page with the verdict and the gap in words."""
    evidence = build_evidence(tmp_path / "evidence", faults=["rank-slow"])
    edit(evidence)
    document = judge(evidence)
    assert document.verdict == verdict
    html = write_report(document, evidence, tmp_path / "report").read_text("utf-8")
    assert said in html
    assert verdict.replace("_", " ") in html
    assert "unknown" in html
    assert ">nan" not in html.lower()
    assert document.verdict in summary_table(document)


def test_failed_undo_comes_first(tmp_path: Path) -> None:
    """A fault still in force is drawn to the end of the run and is the first thing to do."""
    faults = ["rank-slow", "rank-kill"]
    evidence = build_evidence(tmp_path / "evidence", faults=faults, undo_works=False)  # type: ignore[arg-type]
    document = judge(evidence)
    html = write_report(document, evidence, tmp_path / "report").read_text("utf-8")
    assert "1 rank-slow, not undone" in html
    actions = html[html.index('class="actions"') :]
    assert actions.index("tailwatch gameday doctor") < actions.index("tailwatch demo")


@pytest.mark.parametrize("verdict", SEVERITY)
def test_empty_directory_and_no_experiment(tmp_path: Path, verdict: Verdict) -> None:
    """With nothing at all there still is a page, and no number on it is made up."""
    document = ReportDocument(
        schema=SCHEMA,
        run="unknown",
        plan="",
        verdict=verdict,
        reason="Nothing is here.",
        started_at=None,
        finished_at=None,
        baseline=None,
        experiments=[],
    )
    html = write_report(document, tmp_path / "none", tmp_path / "report").read_text("utf-8")
    assert "No experiment was run" in html or "before any experiment" in html
    assert "the evidence holds no step of the job" in html
    assert msgspec.json.decode((tmp_path / "report" / "report.json").read_bytes())
