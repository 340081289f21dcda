"""The report of a game day: `report.html` for people, `report.json` for machines.

Contract: `write_report` takes a judged document and the evidence it was judged from, and writes
both files whole or not at all. The page is one file without anything from outside, readable
without scripts, in light, dark and on paper. It is written for every verdict: what the evidence
lacks is said on the page. Importing this package costs nothing; matplotlib, numpy and jinja2 are
loaded when a page is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tailwatch.report.summary import print_summary, summary_table

if TYPE_CHECKING:
    from tailwatch.verdicts import ReportDocument

__all__ = ["print_summary", "summary_table", "write_report"]


def write_report(document: ReportDocument, evidence: Path, out: Path) -> Path:
    """Write `report.json` and `report.html` into the directory `out` and return the page's path.

    Args:
        document: the judged game day.
        evidence: the evidence directory; it may lack anything.
        out: a directory, made when it does not exist; a report in it is replaced.

    Raises:
        UsageError: `out` cannot be written.
    """
    import msgspec

    from tailwatch.errors import UsageError
    from tailwatch.evidence import EvidenceDirectory
    from tailwatch.files import write_durably
    from tailwatch.report.history import read_history
    from tailwatch.report.page import render_page

    page = out / "report.html"
    history = read_history(EvidenceDirectory(evidence), document)
    whole = evidence.resolve()
    html = render_page(document, history, f"{whole.parent.name}/{whole.name}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.format(msgspec.json.encode(document), indent=2)
        write_durably(out / "report.json", data + b"\n")
        write_durably(page, html.encode())
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", source=out) from error
    return page
