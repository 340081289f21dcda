"""`tailwatch checkpoint`: which checkpoints are good, which would be loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailwatch.cli import checkpoint_prune
from tailwatch.cli.common import Json, group

if TYPE_CHECKING:
    from rich.console import Console

    from tailwatch.integrity import Audit, AuditedCheckpoint

VERIFY_STATUSES = """\b
Exit status, of the newest candidate:
  0  valid
  1  corrupt, incomplete, or there is none
  2  wrong usage or unreadable input
  3  unverifiable: complete as far as can be seen, but no checksum to check the bytes against
"""

LATEST_STATUSES = """\b
Exit status, of what would be loaded:
  0  valid
  1  there is nothing to load
  2  wrong usage or unreadable input
  3  unverifiable: complete as far as can be seen, but no checksum to check the bytes against
"""

COLOURS = {
    "valid": "bold green",
    "unverifiable": "bold yellow",
    "incomplete": "bold red",
    "corrupt": "bold red",
    "empty": "bold red",
}

Where = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="Run directory, its checkpoints/, one checkpoint, or what another framework wrote.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    commands = group("Look at checkpoints; only `prune --apply` changes anything. Needs no torch.")
    commands.command(epilog=VERIFY_STATUSES)(verify)
    commands.command(name="list")(list_all)
    commands.command(epilog=LATEST_STATUSES)(latest)
    checkpoint_prune.add_to(commands)
    app.add_typer(commands, name="checkpoint")


def verify(path: Where, json_output: Json = False) -> None:
    """Check every byte that has a checksum; say which step is complete, which is not, and why.

    Ours, and those of torch DCP, torch.save, safetensors, Hugging Face, Megatron, DeepSpeed, NeMo.

    Example: tailwatch checkpoint verify /tmp/night/checkpoints
    """
    from rich.text import Text

    from tailwatch.integrity import EXIT_CODES

    audit = _audit(path, json_output)
    if not json_output:
        console = _console()
        console.print(_table(audit))
        for candidate in audit.candidates:
            for reason in candidate.reasons:
                bullet = (" • ", COLOURS[candidate.verdict])
                console.print(Text.assemble(bullet, reason), soft_wrap=True)
        console.print(_summary(audit), soft_wrap=True)
    raise typer.Exit(EXIT_CODES[audit.verdict])


def list_all(path: Where, json_output: Json = False) -> None:
    """List all checkpoints with their verdicts, the newest first.

    Example: tailwatch checkpoint list /tmp/night
    """
    audit = _audit(path, json_output)
    if not json_output:
        _console().print(_table(audit))


def latest(path: Where, json_output: Json = False) -> None:
    """Print the checkpoint that a restart would load: the newest complete one.

    Example: tailwatch checkpoint latest /tmp/night
    """
    from tailwatch.integrity import EXIT_CODES

    audit = _audit(path, json_output)
    loaded = next((c for c in audit.candidates if c.name == audit.would_load), None)
    if loaded is None:
        if not json_output:
            typer.echo(f"{_line(path)}: no checkpoint to load", err=True)
        raise typer.Exit(1)
    if not json_output:
        typer.echo(_line(loaded.name))
    raise typer.Exit(EXIT_CODES[loaded.verdict])


def _audit(path: Path, json_output: bool) -> Audit:
    from rich.console import Console

    from tailwatch.integrity import audit

    progress = Console(stderr=True)
    if json_output or not progress.is_terminal:
        found = audit(path)
    else:
        with progress.status(f"reading {_line(path)}"):
            found = audit(path)
    if json_output:
        import msgspec

        # Bytes, because the locale of stdout may not have every character of a name.
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()
    return found


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    # A pipe has no width that a line would have to fit.
    return console if console.is_terminal else Console(highlight=False, width=200)


def _table(audit: Audit) -> object:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = Text.assemble((_line(audit.path), "bold"), f"  {audit.format}")
    table = Table(
        box=SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="",
        pad_edge=False,
    )
    table.add_column("", width=1)
    table.add_column("checkpoint", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("loads at world size", overflow="fold")
    for candidate in audit.candidates:
        table.add_row(
            Text("▶" if candidate.name == audit.would_load else ""),
            Text(_line(candidate.name), style="" if candidate.state == "committed" else "dim"),
            Text("" if candidate.step is None else f"{candidate.step:,}"),
            Text(candidate.verdict, style=COLOURS[candidate.verdict]),
            Text(_size(candidate)),
            Text(candidate.world or ""),
        )
    return table


def _summary(audit: Audit) -> object:
    from rich.text import Text

    loaded = next((c for c in audit.candidates if c.name == audit.would_load), None)
    parts: list[tuple[str, str] | str] = [(audit.verdict, COLOURS[audit.verdict]), ": "]
    if loaded is None:
        parts.append("nothing to load")
        newest = max((c.step or 0 for c in audit.candidates), default=0)
        if newest:
            parts.append(f", all {newest:,} steps lost")
    else:
        parts += ["a restart loads ", (_line(loaded.name), "bold")]
        if audit.steps_lost:
            parts.append((f", {audit.steps_lost:,} steps lost", "bold red"))
    return Text.assemble(*parts)


def _size(candidate: AuditedCheckpoint) -> str:
    size = float(sum(file.size or 0 for file in candidate.files))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _line(text: str | Path) -> str:
    """Return text that stays on its line, whatever a name holds."""
    from tailwatch.integrity.foreign import shown

    return shown(str(text))
