"""`tailwatch hang`: which rank a hung job waits for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailwatch.cli.common import Json

if TYPE_CHECKING:
    from tailwatch.flight_recorder import Diagnosis

STATUSES = """\b
Exit status:
  0  no cause to name: nobody waits
  1  a cause is named: ranks, or the network
  2  wrong usage or unreadable input
  3  unknown: the dumps do not tell
"""
EXIT_CODES = {"none": 0, "rank": 1, "network": 1, "unknown": 3}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=STATUSES)(hang)


def hang(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of PyTorch flight recorder dumps.")
    ],
    json_output: Json = False,
) -> None:
    """Say which rank never joined, in which collective, and who only waits for it.

    Reads pickles without running them, and JSON. Torch is not needed.

    Example: tailwatch hang /tmp/nccl_traces
    """
    from tailwatch.flight_recorder import diagnose, read

    diagnosis = diagnose(read(directory))
    if json_output:
        import msgspec

        typer.echo(msgspec.json.encode(diagnosis).decode())
    else:
        _tell(diagnosis)
    raise typer.Exit(EXIT_CODES[diagnosis.verdict])


def _tell(diagnosis: Diagnosis) -> None:
    roots = ", ".join(map(str, diagnosis.root_ranks))
    many = "s" if len(diagnosis.root_ranks) > 1 else ""
    typer.echo(
        {
            "rank": f"rank{many} {roots}",
            "network": "network: all joined, none finished",
            "none": "none: nobody waits",
            "unknown": "unknown: the dumps do not tell",
        }[diagnosis.verdict]
    )
    for reason in diagnosis.reasons:
        typer.echo(f"  {reason}")
    for group in diagnosis.groups:
        missing = ", ".join(map(str, group.missing_ranks)) or "nobody"
        typer.echo(f"  {group.name}: {group.operation} {group.sequence}, missing {missing}")
    if diagnosis.victims:
        typer.echo(f"  victims: {', '.join(map(str, diagnosis.victims))}")
