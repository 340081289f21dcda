"""`tailwatch checkpoint prune`: which old checkpoints may go; deletes nothing unless told to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailwatch.cli.common import Json

if TYPE_CHECKING:
    from tailwatch.integrity import Forecast, Plan

PRUNE_STATUSES = """\b
Exit status:
  0  planned or done
  1  a quota is still exceeded
  2  wrong usage or unreadable input, or a job is using the run
"""


def add_to(commands: typer.Typer) -> None:
    """Register the command."""
    commands.command(epilog=PRUNE_STATUSES)(prune)


def prune(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="Run directory, or its checkpoints/.")
    ],
    keep_last: Annotated[int, typer.Option(help="How many of the newest to keep.", min=1)] = 4,
    keep_every: Annotated[
        int | None, typer.Option(help="Keep steps divisible by this for good.", min=1)
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="Quota for all that lies there, bytes on disk.", min=1)
    ] = None,
    max_inodes: Annotated[int | None, typer.Option(help="The same for inodes.", min=1)] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Really delete.")] = False,
    json_output: Json = False,
) -> None:
    """Say which checkpoints may go, and with --apply delete them.

    Never deletes the newest checkpoint that is valid, anything newer than it, or a quarantined one.

    Example: tailwatch checkpoint prune /tmp/night --keep-last 4 --keep-every 1000
    """
    from tailwatch.holding import Hold
    from tailwatch.integrity import Policy, carry_out, forecast, plan_retention
    from tailwatch.runs import RunDirectory

    checkpoints = _checkpoints(path)
    policy = Policy(
        keep_last=keep_last, keep_every=keep_every, max_bytes=max_bytes, max_inodes=max_inodes
    )
    hold = None
    if apply:
        # A job that falls back may be reading what would be deleted here.
        run = RunDirectory(checkpoints.resolve().parent)
        hold = Hold.take(run.holder, "run", f"{run.name} (checkpoint prune)")
    plan = plan_retention(checkpoints, policy)
    outlook = forecast(checkpoints, policy, plan)
    if apply:
        carry_out(checkpoints, plan)
    if hold is not None:
        hold.release()
    if json_output:
        import msgspec

        document = {"path": str(checkpoints), "applied": apply, "plan": plan, "forecast": outlook}
        typer.echo(msgspec.json.encode(document).decode())
    else:
        _print(plan, outlook, apply)
    raise typer.Exit(1 if plan.exceeds else 0)


def _checkpoints(path: Path) -> Path:
    from tailwatch.errors import UsageError
    from tailwatch.integrity import candidates

    try:
        for place in (path, path / "checkpoints"):
            if candidates(place):
                return place
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", source=path) from error
    raise UsageError("no checkpoint of ours there", source=path)


def _print(plan: Plan, outlook: Forecast, applied: bool) -> None:
    for word, items in (
        ("deleted" if applied else "would delete", plan.remove),
        ("keep", plan.keep),
        ("quarantined", plan.quarantined),
    ):
        for item in items:
            why = f"  {item.why}" if item.why else ""
            typer.echo(f"{word:12}  {item.name}  {item.bytes / 2**20:10.1f} MiB{why}")
    typer.echo(f"leaves {plan.bytes / 2**20:.1f} MiB and {plan.inodes} inodes")
    if outlook.saves is not None:
        hours = "" if outlook.seconds is None else f", {outlook.seconds / 3600:.1f} h"
        typer.echo(f"{outlook.saves} more saves fit ({outlook.limit}{hours})")
    if plan.exceeds:
        typer.echo(f"exceeds the quota all the same: {plan.exceeds}")
    if plan.remove and not applied:
        typer.echo("nothing was deleted: --apply does it")
