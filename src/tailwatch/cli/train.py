"""`tailwatch train`: the training job that is watched."""

from __future__ import annotations

import typer

from tailwatch.cli.common import PASS_ON


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(context_settings=PASS_ON)(train)


def train(context: typer.Context) -> None:
    """Start the ranks of one node of the mixture-of-experts GRPO trainer.

    All arguments go to the launcher. Example: tailwatch train --help
    """
    from tailwatch.trainer.launch.main import main

    raise typer.Exit(main(context.args))
