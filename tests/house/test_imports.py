"""Who may import whom, and what an import may cost."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.checkout import ROOMS, ROOT, copy, files

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def test_no_bare_import_of_a_room() -> None:
    """A room is imported as tailwatch.<room>: the bare names belong to other distributions."""
    bare = [
        f"{name}: {module}"
        for name in files()
        if name.endswith(".py")
        for module in _imported(ROOT / name)
        if module.split(".")[0] in ROOMS
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("src/tailwatch/errors.py", "import tailwatch.agents"),
        ("agents/__init__.py", "import tailwatch.trainer.recorder"),
        ("alerts/__init__.py", "def f() -> None:\n    import tailwatch.dashboards"),
        ("chaos/__init__.py", "import tailwatch.trainer.model"),
        ("trainer/__init__.py", "import tailwatch.cli"),
        ("src/tailwatch/newcomer.py", ""),
    ],
)
def test_import_contract_can_fail(tmp_path: Path, file: str, line: str) -> None:
    """A kernel or room that imports a room, and a kernel module nobody listed, break the lint."""
    tree = copy(tmp_path, "src", *ROOMS, "pyproject.toml")
    with (tree / file).open("a") as module:
        module.write(f"\n{line}\n")
    outcome = subprocess.run(
        [LINT_IMPORTS, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    blamed = file.removeprefix("src/tailwatch/").split("/")[0].removesuffix(".py")
    assert f"tailwatch.{blamed}" in outcome.stdout


def test_chaos_may_use_the_launcher(tmp_path: Path) -> None:
    """Chaos and poc may use the public face of the launcher and of checkpoints."""
    tree = copy(tmp_path, "src", *ROOMS, "pyproject.toml")
    for room in ("chaos", "poc"):
        (tree / room / "probe.py").write_text(
            "import tailwatch.trainer.launch\nimport tailwatch.trainer.checkpoint\n"
        )
    outcome = subprocess.run(
        [LINT_IMPORTS, "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("module", ["tailwatch.agents.node.main", "tailwatch.cli"])
def test_import_is_light(module: str) -> None:
    """The node agent and the command line load no numerics, no torch and no cluster client."""
    heavy = {"numpy", "scipy", "torch", "matplotlib", "kubernetes"}
    program = f"import sys, {module}; print(*sys.modules)"
    outcome = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert heavy & set(outcome.stdout.split()) == set()
