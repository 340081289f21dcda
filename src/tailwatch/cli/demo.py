"""`tailwatch demo`: one game day on this machine."""

from __future__ import annotations

import typer

from tailwatch.cli.common import VERDICT_STATUSES, Control, Json, Only, Out


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog=VERDICT_STATUSES)(demo)


def demo(
    out: Out = None,
    only: Only = None,
    control: Control = None,
    json_output: Json = False,
) -> None:
    """Run a game day end to end on this machine: train, break, page, recover, judge.

    Starts a small training job on two "nodes", its agents, Prometheus and Alertmanager, runs four
    experiments and writes report.html.

    Example: tailwatch demo --only rank-slow --out /tmp/night
    """
    from tailwatch.demo.run import run_demo

    raise typer.Exit(run_demo(out=out, only=only, control=control, json_output=json_output))
