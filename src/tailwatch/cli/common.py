"""What several commands share: options, exit statuses in the help, arguments passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Directory to write to; a new one by default."),
]

Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on stdout and nothing else there.")
]

Only = Annotated[
    str | None,
    typer.Option("--only", metavar="NAME", help="Run this experiment of the plan alone."),
]

Control = Annotated[
    Literal["no-injection", "rule-removed", "undo-blocked"] | None,
    typer.Option(
        "--control",
        metavar="NAME",
        help="Negative control: no-injection must end INCONCLUSIVE, rule-removed DEVIATED, "
        "undo-blocked UNDO_FAILED.",
    ),
]

# `\b` keeps the lines of a table as they are.
VERDICT_STATUSES = """\b
Exit status, the worst of all experiments (5 > 4 > 1 > 3 > 0):
  0  PASSED
  1  DEVIATED
  2  wrong usage or unreadable input
  3  INCONCLUSIVE or BASELINE_NOT_MET
  4  ABORTED
  5  UNDO_FAILED
"""

PASS_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
"""Settings of a command whose arguments, `--help` too, are for the program behind it."""


def group(help_text: str) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
