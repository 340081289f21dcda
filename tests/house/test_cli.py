"""The command line as people meet it: help, one line for bad input, exit statuses."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from support.checkout import ROOT
from tailwatch.cli import app

CLI = ROOT / "src" / "tailwatch" / "cli"
TAILWATCH = Path(sys.executable).with_name("tailwatch")


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tailwatch", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )


def _commands() -> list[list[str]]:
    def below(command: object, path: list[str]) -> Iterator[list[str]]:
        for name, child in getattr(command, "commands", {}).items():
            if hasattr(child, "commands"):
                yield from below(child, [*path, name])
            elif child.get_help_option_names(child.make_context(name, [], resilient_parsing=True)):
                yield [*path, name]

    return list(below(get_command(app), []))


def test_help_is_quick() -> None:
    """`tailwatch --help` answers at once (0.3 s is the goal, 3 s the bound on a busy machine)."""
    started = time.monotonic()
    outcome = subprocess.run([TAILWATCH, "--help"], capture_output=True, text=True, check=True)
    assert time.monotonic() - started < 3.0
    for command in ("demo", "gameday", "agent", "train", "checkpoint", "alerts"):
        assert f"\n  {command} " in outcome.stdout


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_help_shows_an_example(command: list[str]) -> None:
    """Each command's help shows how it is typed."""
    outcome = _run(*command, "--help")
    assert outcome.returncode == 0
    assert f"Example: tailwatch {' '.join(command[:1])}" in outcome.stdout


@pytest.mark.parametrize("command", ["demo", "gameday run", "gameday judge"])
def test_help_has_the_exit_statuses(command: str) -> None:
    """Where the verdict is the exit status, the help says which is which."""
    outcome = _run(*command.split(), "--help")
    for line in ("0  PASSED", "1  DEVIATED", "4  ABORTED", "5  UNDO_FAILED"):
        assert f"\n    {line}\n" in outcome.stdout


def _lazy_imports() -> list[tuple[str, str]]:
    return sorted(
        (node.module or "", alias.name)
        for path in CLI.glob("*.py")
        for function in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


@pytest.mark.parametrize(("module", "name"), sorted(set(_lazy_imports())))
def test_commands_have_their_functions(module: str, name: str) -> None:
    """What a command imports when it runs is there."""
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    "arguments",
    [
        "no-such-command",
        "demo --no-such-option",
        "demo --control no-such-control",
        "gameday",
        "gameday run",
        "gameday run no/such/plan.json",
        "gameday lint no/such/plan.json",
        "gameday judge no/such/directory",
        "checkpoint verify no/such/directory",
        "alerts build",
    ],
)
def test_bad_input_is_one_line(arguments: str) -> None:
    """Wrong usage gives exit status 2 and one line that names what is wrong, no traceback."""
    outcome = _run(*arguments.split())
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("tailwatch")


def _with_a_judge_that_raises(exception: str, directory: Path) -> subprocess.CompletedProcess[str]:
    program = f"""
import sys, types
from tailwatch.errors import UsageError
def judge_directory(path, json_output): raise {exception}
sys.modules["tailwatch.demo.judge"] = types.ModuleType("tailwatch.demo.judge")
sys.modules["tailwatch.demo.judge"].judge_directory = judge_directory
sys.argv = ["tailwatch", "gameday", "judge", {str(directory)!r}]
from tailwatch.cli import main
main()
"""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_usage_error_is_one_line(tmp_path: Path) -> None:
    """A room's UsageError becomes one line with file, place and what was expected."""
    outcome = _with_a_judge_that_raises(
        "UsageError('expected a number,\\nfound \"x\"', source='plan.json', place='criteria.n')",
        tmp_path,
    )
    assert outcome.returncode == 2
    assert outcome.stderr == 'tailwatch: plan.json: criteria.n: expected a number, found "x"\n'


def test_other_errors_keep_their_traceback(tmp_path: Path) -> None:
    """A fault of the program itself is not dressed up as wrong usage."""
    outcome = _with_a_judge_that_raises("KeyError('rank')", tmp_path)
    assert outcome.returncode == 1
    assert "Traceback" in outcome.stderr
    assert "KeyError: 'rank'" in outcome.stderr


def test_arguments_are_passed_on() -> None:
    """`train` and the agents answer --help and refuse wrong options themselves."""
    for command in (["train"], ["agent", "node"], ["agent", "job"]):
        assert _run(*command, "--help").stdout.startswith("usage: ")
        assert _run(*command, "--no-such-option").returncode == 2


def test_alerts_check_looks() -> None:
    """The rules and routes in the tree are clean; without the tools the answer is another."""
    assert _run("alerts", "check").stdout == "clean\n"
    outcome = subprocess.run(
        [sys.executable, "-m", "tailwatch", "alerts", "check", "--json"],
        env={**os.environ, "XDG_CACHE_HOME": "/no/such/folder", "PATH": "/no/such/folder"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stdout) == (3, '{"findings":null}\n')


def test_alerts_build_writes_the_rules(tmp_path: Path) -> None:
    """`alerts build` prints the path of the rule file it has written."""
    (line,) = _run("alerts", "build", "--out", tmp_path / "rules").stdout.splitlines()
    assert Path(line).is_file()
    assert Path(line).parent == tmp_path / "rules"
    assert "interval: 15s" in Path(line).read_text()


def test_alerts_build_takes_the_scrape_interval(tmp_path: Path) -> None:
    """The windows of the rules follow the interval, and an impossible one is refused."""
    (line,) = _run("alerts", "build", "--out", tmp_path, "--interval", "30").stdout.splitlines()
    assert "[150s]" in Path(line).read_text()
    outcome = _run("alerts", "build", "--out", tmp_path, "--interval", "0")
    assert (outcome.returncode, outcome.stdout) == (2, "")
    assert "--interval" in outcome.stderr
