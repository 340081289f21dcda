"""`tailwatch explain`: what the lines that somebody pasted mean."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailwatch.cli.common import Json

if TYPE_CHECKING:
    from tailwatch.agents.explain import Explanation, Incident

STATUSES = """\b
Exit status:
  0  nothing wrong: at most noise
  1  incidents
  2  wrong usage or input that is no log
  3  only unknown lines
"""
_SHOWN = 3

Source = Annotated[
    str,
    typer.Argument(metavar="FILE|-", help="A log, or - for standard input.", show_default=False),
]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=STATUSES)(explain)


def explain(source: Source, json_output: Json = False) -> None:
    """Say what lines of a log mean: the root, its echoes, what to do, and what is noise.

    Reads kernel log, NCCL, gloo, torchrun, libfabric and watchdog lines, mixed as they come.

    Example: tailwatch explain train.log, or kubectl logs trainer-0 | tailwatch explain -
    """
    explanation = _explain(source)
    if json_output:
        import msgspec

        typer.echo(msgspec.json.encode(explanation).decode())
    else:
        for line in _text(explanation):
            typer.echo(line)
    raise typer.Exit(_exit_code(explanation))


def _exit_code(explanation: Explanation) -> int:
    if any(not _is_noise(incident) for incident in explanation.incidents):
        return 1
    return 3 if explanation.unknown_lines and not explanation.incidents else 0


def _explain(source: str) -> Explanation:
    from tailwatch.agents.explain import explain, read_lines
    from tailwatch.errors import UsageError

    if source == "-":
        return explain(read_lines(sys.stdin.buffer, "standard input"))
    try:
        with Path(source).open("rb") as file:
            return explain(read_lines(file, source))
    except OSError as error:
        raise UsageError(f"{error.strerror}; expected a log", source=source) from error


def _text(explanation: Explanation) -> list[str]:
    out = []
    root, incidents = explanation.root, explanation.incidents
    rest = incidents
    if root is not None:
        first, rest = incidents[0], incidents[1:]
        known = "ROOT" if root.in_text else "LOOK AT"
        out.append(f"{known}  {_name(first)}")
        out.append(f"      {first.cause or first.echo}.")
        out.append(f"      Do: {first.action}")
        out += [f"      | {line[:160]}" for line in first.lines[:_SHOWN]]
        if len(first.lines) > _SHOWN:
            out.append(f"      | ... {len(first.lines) - _SHOWN} more")
    else:
        out.append("ROOT  none: no line tells of a fault")
    for title, chosen in (
        ("Other causes", [one for one in rest if one.cause]),
        ("Echoes", [one for one in rest if one.echo and not _is_noise(one)]),
    ):
        if chosen:
            out += ["", title]
            out += [f"  {_name(one)} x{len(one.lines)}: {one.cause or one.echo}" for one in chosen]
    noise = [one for one in rest if _is_noise(one)]
    if noise:
        kinds = ", ".join(sorted({one.kind for one in noise}))
        out += ["", f"Noise  {sum(len(one.lines) for one in noise)} lines: {kinds}"]
    if explanation.unknown_lines:
        unknown = explanation.unknown_lines
        out += ["", f"Unknown  {len(unknown)} lines, for example"]
        out += [f"  | {line[:160]}" for line in unknown[:_SHOWN]]
    return out


def _name(incident: Incident) -> str:
    return f"{incident.kind}: {incident.subject}" if incident.subject else incident.kind


def _is_noise(incident: Incident) -> bool:
    return incident.echo.startswith("Noise: ")
