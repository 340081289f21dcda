"""The command line: one program `tailwatch`, one module here for each command.

Contract: wrong usage and unreadable input (`UsageError`) give one line on stderr and exit status 2;
what a command returns is its exit status; any other exception keeps its traceback. A command
imports its room when it runs, so `tailwatch --help` loads none.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

import tailwatch
from tailwatch.cli import agent, alerts, checkpoint, demo, diagnose, explain, gameday, hang, train
from tailwatch.errors import UsageError

app = typer.Typer(
    help=tailwatch.__doc__,
    epilog="Exit status 2 always means wrong usage or unreadable input, told in one line.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def tailwatch_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Watch expert-parallel RL post-training and prove that it survives the bad night."""
    if version:
        typer.echo(f"tailwatch {tailwatch.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


demo.add_to(app)
gameday.add_to(app)
train.add_to(app)
agent.add_to(app)
checkpoint.add_to(app)
alerts.add_to(app)
diagnose.add_to(app)
hang.add_to(app)
explain.add_to(app)


def main() -> NoReturn:
    """Run the command of `sys.argv` and exit with its status."""
    try:
        status = app(prog_name="tailwatch", standalone_mode=False)
    except UsageError as error:
        status = _refuse("tailwatch", str(error))
    except typer.TyperException as error:
        # Not every such exception has been inside a command yet.
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "tailwatch"
        message = " ".join(error.format_message().split()).rstrip(".")
        status = _refuse(command, f"{message} (see `{command} --help`)")
    except typer.Abort:
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


def _refuse(command: str, message: str) -> int:
    print(f"{command}: {message}", file=sys.stderr)
    return 2
