"""The page of a whole game day: complete, self-contained, the same every time."""

from __future__ import annotations

import html as entities
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from support.evidence import build_evidence
from tailwatch.chaos.judge import judge
from tailwatch.errors import UsageError
from tailwatch.report import write_report
from tailwatch.verdicts import AlertOutcome, Check, ReportDocument

if TYPE_CHECKING:
    from report.conftest import Reported

_VOID = {"meta", "link", "br", "path", "use", "rect", "image"}


class _Reader(HTMLParser):
    """Collects tags and attributes and checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag


def _read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


def test_page_needs_nothing_from_outside(reported: Reported) -> None:
    """No attribute, style or script of the page refers to anything but the page itself."""
    reader = _read(reported.html)
    for tag, attributes in reader.tags:
        assert tag not in {"script", "iframe", "object", "embed", "base"}
        for name, value in attributes.items():
            if name in {"src", "href", "xlink:href", "srcset", "action", "data"}:
                assert (value or "").startswith(("#", "data:")), (tag, name, value)
            assert not name.startswith("on")
    assert "http://" not in reported.html
    assert "https://" not in reported.html
    assert "@import" not in reported.html
    assert not re.search(r"url\((?!#)", reported.html)


def test_ids_are_unique_and_references_lead_somewhere(reported: Reported) -> None:
    """Several charts in one page do not take each other's shapes."""
    reader = _read(reported.html)
    ids = [a["id"] for _, a in reader.tags if "id" in a]
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:href="|url\()#([^")]+)', reported.html)
    assert used
    assert set(used) <= set(ids)


def test_page_holds_every_fact_of_the_document(reported: Reported) -> None:
    """Each text, time and number of report.json can be found in the page."""
    text = entities.unescape(reported.html)
    document = msgspec.to_builtins(reported.document)
    document.pop("reason")  # of a pass: the headline says it with its numbers
    for outcome in document["experiments"]:
        outcome["p99"] = [q for q in outcome["p99"].values() if q["n"]]
        outcome["undo"] = {"none": "nothing to undo"}.get(outcome["undo"], outcome["undo"])
    missing = []
    for leaf in _leaves(document):
        if isinstance(leaf, bool) or leaf is None:
            continue
        if isinstance(leaf, str):
            found = leaf in text or leaf.replace("_", " ") in text
        else:
            found = re.search(rf"(?<![\d.]){re.escape(str(leaf))}(?![\d])", text) is not None
        if not found:
            missing.append(leaf)
    assert missing == []


def test_json_round_trips(reported: Reported) -> None:
    """report.json is the document, to the last digit."""
    data = reported.page.with_name("report.json").read_bytes()
    assert msgspec.json.decode(data, type=ReportDocument) == reported.document


def test_same_input_gives_the_same_bytes(reported: Reported, tmp_path: Path) -> None:
    """Another process with another hash seed writes the same page."""
    program = (
        "import sys; from pathlib import Path; import msgspec;"
        "from tailwatch.report import write_report; from tailwatch.verdicts import ReportDocument;"
        "d, e, o = map(Path, sys.argv[1:]);"
        "write_report(msgspec.json.decode(d.read_bytes(), type=ReportDocument), e, o)"
    )
    report = reported.page.with_name("report.json")
    arguments = [str(report), str(reported.evidence), str(tmp_path)]
    subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"},
        timeout=120,
    )
    assert (tmp_path / "report.html").read_bytes() == reported.page.read_bytes()
    assert (tmp_path / "report.json").read_bytes() == report.read_bytes()


def test_no_temporary_file_stays(reported: Reported) -> None:
    """Beside the two files of the report nothing is left in its directory."""
    names = sorted(p.name for p in reported.page.parent.iterdir())
    assert names == ["report.html", "report.json"]


def test_hostile_text_stays_text(reported: Reported, tmp_path: Path) -> None:
    """Markup and formulas in names, labels and details are shown and never carried out."""
    evil = "<script>alert(1)</script>"
    document = msgspec.json.decode(msgspec.json.encode(reported.document), type=ReportDocument)
    document.plan, document.run, document.reason = f"plan {evil}", f"run {evil}", f"r {evil}"
    outcome = document.experiments[0]
    outcome.name = f'a$\\frac{{"{evil}$'
    outcome.hypothesis = outcome.reason = f"{evil}&amp;"
    outcome.target = {"node": evil, "rank": 3}
    outcome.checks.append(Check(name=f"undo: {evil}", passed=False, detail=evil))
    labels = {"node": evil, evil: '" onload="alert(1)'}
    outcome.alerts.append(
        AlertOutcome(
            name=f"Alert]]>{evil}",
            labels=labels,
            role="unlisted",
            fired_at=outcome.injected_at,
            delivered_at=outcome.injected_at,
            resolved_at=None,
        )
    )
    html = write_report(document, reported.evidence, tmp_path).read_text("utf-8")
    reader = _read(html)
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert not [a for _, a in reader.tags if "onload" in a]
    assert entities.escape(evil, quote=False) in html


def test_five_thousand_steps_stay_small(tmp_path: Path) -> None:
    """The page of 5,000 steps of 4 ranks is below 1.5 MB."""
    evidence = build_evidence(tmp_path / "e", faults=["rank-slow"], baseline_steps=4720)
    page = write_report(judge(evidence), evidence, tmp_path / "report")
    assert "5,0" in re.search(r"4 ranks on 2 nodes, ([\d,]+) steps", page.read_text("utf-8"))[1]  # type: ignore[index]
    assert page.stat().st_size < 1_500_000


def test_a_place_that_cannot_be_written_is_wrong_usage(reported: Reported, tmp_path: Path) -> None:
    """A file where the directory should be is one clear line, not a traceback."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match="taken"):
        write_report(reported.document, reported.evidence, tmp_path / "taken")


def test_importing_the_package_is_cheap() -> None:
    """Neither matplotlib nor jinja2 nor numpy is loaded before a page is drawn."""
    program = (
        "import sys, tailwatch.report;"
        "print([m for m in ('matplotlib', 'jinja2', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
