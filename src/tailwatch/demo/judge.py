"""Judges a game day again from its evidence, offline, and says so in words or JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tailwatch.chaos.judge import judge
from tailwatch.errors import UsageError
from tailwatch.report.summary import summary_table
from tailwatch.verdicts import EXIT_CODES


def judge_directory(path: Path, json_output: bool) -> int:
    """Print the verdict of a run or evidence directory and return its exit code."""
    evidence = path / "evidence" if (path / "evidence").is_dir() else path
    if not (evidence / "plan.json").is_file():
        raise UsageError("no plan.json, expected a run or its evidence directory", source=evidence)
    document = judge(evidence)
    if json_output:
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    else:
        print(summary_table(document))
    return EXIT_CODES[document.verdict]
