"""`tailwatch alerts`: build and check the alert rules."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tailwatch.cli.common import Json, group
from tailwatch.errors import UsageError
from tailwatch.tools import find_tool

CHECK_STATUSES = """\b
Exit status:
  0  clean
  1  findings
  2  wrong usage or unreadable input
  3  could not look
"""


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    commands = group("Build the alert rules, check them.")
    commands.command()(build)
    commands.command(epilog=CHECK_STATUSES)(check)
    app.add_typer(commands, name="alerts")


def build(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory to write the rule file to.")
    ],
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            help="How often your Prometheus scrapes the agents; all windows follow from it.",
        ),
    ] = 15.0,
) -> None:
    """Write the rule file that Prometheus reads, and print its path.

    Example: tailwatch alerts build --out /etc/prometheus/rules --interval 30
    """
    from tailwatch.alerts.build import build

    if not 0.1 <= interval <= 600:
        raise UsageError(f"{interval:g}, expected 0.1 to 600 seconds", source="--interval")
    typer.echo(build(out, run_interval=interval))


def check(json_output: Json = False) -> None:
    """Check rules and routes with promtool and amtool, and that each alert has its runbook.

    Example: tailwatch alerts check
    """
    try:
        promtool, amtool = find_tool("promtool"), find_tool("amtool")
    except UsageError as error:
        findings, status, text = None, 3, f"could not look: {error}"
    else:
        findings = _findings(promtool, amtool)
        status, text = (1, "\n".join(findings)) if findings else (0, "clean")
    if json_output:
        import msgspec

        text = msgspec.json.encode({"findings": findings}).decode()
    typer.echo(text)
    raise typer.Exit(status)


def _findings(promtool: Path, amtool: Path) -> list[str]:
    from importlib.resources import files

    import msgspec

    from tailwatch.alerts.alertmanager import alertmanager_config
    from tailwatch.alerts.build import build
    from tailwatch.alerts.rules import rules

    runbooks = files("tailwatch.alerts") / "runbooks"
    findings = [
        f"{alert.name}: no runbook"
        for alert in rules().alerts
        if not (runbooks / f"{alert.name}.md").is_file()
    ]
    with tempfile.TemporaryDirectory(prefix="tailwatch-alerts-") as directory:
        routes = Path(directory) / "alertmanager.yml"
        routes.write_bytes(msgspec.json.encode(alertmanager_config("http://127.0.0.1:9/")))
        looks: list[list[str | Path]] = [
            [promtool, "check", "rules", "--lint=all", "--lint-fatal", build(Path(directory))],
            [amtool, "check-config", routes],
        ]
        for command in looks:
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode != 0:
                findings += (answer.stdout + answer.stderr).strip().splitlines()
    return findings
