"""`tailwatch train`: the training job that is watched."""

from __future__ import annotations

import typer

from tailwatch.cli.common import PASS_ON


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(context_settings=PASS_ON)(train)


def train(context: typer.Context) -> None:
    """Train the small mixture-of-experts model on this machine, without a game day around it.

    Example: tailwatch train --set max_steps=200 --out /tmp/run
    """
    from tailwatch.trainer.launch.main import main

    raise typer.Exit(main(context.args))
