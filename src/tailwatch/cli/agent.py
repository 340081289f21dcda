"""`tailwatch agent`: the two processes that watch."""

from __future__ import annotations

import typer

from tailwatch.cli.common import PASS_ON, group


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    commands = group("Watch: one node agent per node, one job agent per training job.")
    commands.command(context_settings=PASS_ON)(node)
    commands.command(context_settings=PASS_ON)(job)
    app.add_typer(commands, name="agent")


def node(context: typer.Context) -> None:
    """Run the agent of a node: ranks' rings, step log, /steps and /metrics.

    All arguments go to the agent. Example: tailwatch agent node --help
    """
    from tailwatch.agents.node.main import main

    raise typer.Exit(main(context.args))


def job(context: typer.Context) -> None:
    """Run the agent of a training job: stragglers, p99 with confidence, restarts, checkpoints.

    All arguments go to the agent. Example: tailwatch agent job --help
    """
    from tailwatch.agents.job.main import main

    raise typer.Exit(main(context.args))
