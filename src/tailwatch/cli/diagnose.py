"""`tailwatch diagnose`: which rank, which phase, since when, and how sure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailwatch.cli.common import Json
from tailwatch.errors import UsageError

if TYPE_CHECKING:
    from tailwatch.analysis.diagnosis import Diagnosis

STATUSES = """\b
Exit status:
  0  no cause to name (with --canary: all known faults were seen)
  1  a cause is named (with --canary: a known fault was missed)
  2  wrong usage or unreadable input
  3  unknown: the records do not say
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=STATUSES)(diagnose)


def diagnose(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PATH]",
            help="Run directory, step log, or an operation trace (parquet) or its directory.",
        ),
    ] = None,
    canary: Annotated[
        bool, typer.Option("--canary", help="Put known faults before the rules instead.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Name the cause of slow steps: rank, stage, load, link, pauses, or nothing to name.

    Example: tailwatch diagnose /tmp/night --json
    """
    if canary:
        if path is not None:
            raise UsageError("takes no PATH: the canary brings its own records", source="--canary")
        raise typer.Exit(_canary(json_output))
    if path is None:
        raise UsageError("is missing: expected a run directory, step log or trace", source="PATH")
    from tailwatch.analysis.source import diagnose_path

    found = diagnose_path(path)
    if json_output:
        from tailwatch.analysis.diagnosis import to_json

        typer.echo(to_json(found))
    else:
        _tell(found)
    raise typer.Exit(found.exit_code)


def _tell(found: Diagnosis) -> None:
    facts = []
    if found.slowdown is not None and found.verdict != "none":
        facts.append(f"{found.slowdown:.2f} times as long")
    if found.onset_step is not None:
        facts.append(f"since step {found.onset_step}")
    if found.explained_share is not None:
        facts.append(f"explains {found.explained_share:.0%}")
    if found.confidence is not None:
        facts.append(f"confidence {found.confidence:.2f}")
    if found.gpu_hours_lost:
        facts.append(f"{found.gpu_hours_lost:.3g} GPU hours lost")
    typer.echo(f"{found.verdict}: {', '.join(facts)}" if facts else found.verdict)
    for worker in found.workers:
        where = f" on {worker.node}" if worker.node else ""
        typer.echo(f"  rank {worker.rank}{where}: {worker.phase}, {worker.ratio:.2f} times")
    if found.placement is not None:
        p = found.placement
        typer.echo(
            f"  experts moved as proposed: load {p.load_max_ratio:.2f} -> "
            f"{p.proposed_load_max_ratio:.2f} of the mean on the busiest rank"
        )
    for reason in found.reasons:
        typer.echo(f"  {reason}")


def _canary(json_output: bool) -> int:
    import msgspec

    from tailwatch.analysis.canary import run_canary

    results = run_canary()
    if json_output:
        typer.echo(msgspec.json.encode({"canary": results}).decode())
    else:
        for result in results:
            said = "seen" if result.passed else "MISSED"
            typer.echo(
                f"{said:6}  {result.fault:10}  {result.found} {result.found_ranks}, "
                f"expected {result.expected} {result.expected_ranks}"
            )
    return 0 if all(result.passed for result in results) else 1
