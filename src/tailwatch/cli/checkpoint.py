"""`tailwatch checkpoint`: which checkpoints are good, which would be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailwatch.cli.common import Json, group

if TYPE_CHECKING:
    from tailwatch.integrity import Audit

VERIFY_STATUSES = """\b
Exit status, of the newest committed checkpoint:
  0  valid
  1  corrupt, incomplete, or there is none
  2  wrong usage or unreadable input
  3  unverifiable: nothing says what its bytes should be
"""

Where = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="Run directory, its checkpoints/, or one checkpoint."),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    commands = group("Look at checkpoints; nothing is changed, torch is not needed.")
    commands.command(epilog=VERIFY_STATUSES)(verify)
    commands.command(name="list")(list_all)
    commands.command(epilog=VERIFY_STATUSES)(latest)
    app.add_typer(commands, name="checkpoint")


def verify(path: Where, json_output: Json = False) -> None:
    """Check every byte of the checkpoints against their digests and say what is wrong.

    Example: tailwatch checkpoint verify /tmp/night/checkpoints
    """
    from tailwatch.integrity import EXIT_CODES

    audit = _audit(path, json_output)
    if not json_output:
        for candidate in audit.candidates:
            for line in candidate.reasons:
                typer.echo(line)
        loads = f"a restart loads {audit.would_load}" if audit.would_load else "nothing to load"
        lost = f", {audit.steps_lost} steps lost" if audit.steps_lost else ""
        typer.echo(f"{audit.verdict}: {loads}{lost}")
    raise typer.Exit(EXIT_CODES[audit.verdict])


def list_all(path: Where, json_output: Json = False) -> None:
    """List all checkpoints with their verdicts, the newest first.

    Example: tailwatch checkpoint list /tmp/night
    """
    audit = _audit(path, json_output)
    if not json_output:
        width = max((len(candidate.name) for candidate in audit.candidates), default=0)
        for candidate in audit.candidates:
            size = sum(file.size or 0 for file in candidate.files) / 2**20
            typer.echo(
                f"{candidate.name:{width}}  {candidate.state:11}  {candidate.verdict:12}"
                f"  {size:10.1f} MiB"
            )


def latest(path: Where, json_output: Json = False) -> None:
    """Print the newest valid checkpoint, the one that a restart would load.

    Example: tailwatch checkpoint latest /tmp/night
    """
    from tailwatch.integrity import EXIT_CODES

    audit = _audit(path, json_output)
    if audit.would_load is None:
        if not json_output:
            typer.echo(f"{path}: no valid checkpoint", err=True)
        raise typer.Exit(EXIT_CODES[audit.verdict] or 1)
    if not json_output:
        typer.echo(audit.would_load)


def _audit(path: Path, json_output: bool) -> Audit:
    from tailwatch.integrity import audit

    found = audit(path)
    if json_output:
        import msgspec

        typer.echo(msgspec.json.encode(found).decode())
    return found
