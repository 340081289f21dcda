"""`tailwatch gameday`: run, judge, lint and clean up after game days."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailwatch.cli.common import VERDICT_STATUSES, Control, Json, Only, Out, group

DOCTOR_STATUSES = """\b
Exit status:
  0  nothing was left, or all of it is undone
  2  wrong usage or unreadable input
  5  something could not be undone
"""

Plan = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan of the game day, a JSON file.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    commands = group("Run game days, judge them again offline, clean up after them.")
    commands.command(epilog=VERDICT_STATUSES)(run)
    commands.command(epilog=VERDICT_STATUSES)(judge)
    commands.command(epilog=DOCTOR_STATUSES)(doctor)
    commands.command()(lint)
    app.add_typer(commands, name="gameday")


def run(
    plan: Plan,
    out: Out = None,
    only: Only = None,
    control: Control = None,
    json_output: Json = False,
) -> None:
    """Run the game day of a plan on this machine.

    Example: tailwatch gameday run night.json --out /tmp/night
    """
    from tailwatch.demo.run import run_plan

    status = run_plan(plan=plan, out=out, only=only, control=control, json_output=json_output)
    raise typer.Exit(status)


def judge(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory, or the evidence/ in it.")
    ],
    json_output: Json = False,
) -> None:
    """Judge a game day again from its evidence alone, offline.

    Example: tailwatch gameday judge /tmp/night
    """
    from tailwatch.demo.judge import judge_directory

    raise typer.Exit(judge_directory(directory, json_output=json_output))


def doctor(
    root: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", help="Directory of game days; by default where demos write."
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Find and undo what a killed game day has left: faults, processes, full disks.

    Example: tailwatch gameday doctor
    """
    from tailwatch.demo.doctor import run_doctor

    raise typer.Exit(run_doctor(root, json_output=json_output))


def lint(plan: Plan) -> None:
    """Check a plan without running it; exit status 2 with file and field if it is wrong.

    Example: tailwatch gameday lint night.json
    """
    from tailwatch.chaos.plan import load_plan
    from tailwatch.demo.lint import check_here

    loaded = load_plan(plan)
    check_here(loaded)
    typer.echo(f"{plan}: ok, {len(loaded.experiments)} experiments")
