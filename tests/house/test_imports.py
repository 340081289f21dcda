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


# Imports everything once and notes which module needs which while it is being initialised: what
# follows is the same for each of them as the first import of a process, and costs seconds.
_WHO_NEEDS_WHOM = """
import builtins, graphlib, importlib, sys

needs = {}
plain_import, plain_import_module = builtins.__import__, importlib.import_module


def note(importer, name):
    spec = getattr(sys.modules.get(importer), "__spec__", None)
    if name.startswith("tailwatch") and getattr(spec, "_initializing", False):
        parts = name.split(".")
        for package in [".".join(parts[:n]) for n in range(1, len(parts))] + [name]:
            # What lies in a package comes after it without asking.
            if package == name or not f"{importer}.".startswith(f"{package}."):
                needs.setdefault(importer, set()).add(package)


def noting_import(name, globals=None, locals=None, fromlist=(), level=0):
    found = plain_import(name, globals, locals, fromlist, level)
    if level == 0 and globals:
        modules = [f"{name}.{part}" for part in fromlist or () if f"{name}.{part}" in sys.modules]
        if len(modules) < len(fromlist or ()) or not modules:
            modules.append(name)
        for module in modules:
            note(globals.get("__name__", ""), module)
    return found


def noting_import_module(name, package=None):
    found = plain_import_module(name, package)
    note(sys._getframe(1).f_globals["__name__"], name)
    return found


builtins.__import__, importlib.import_module = noting_import, noting_import_module
for module in sys.argv[1:]:
    plain_import_module(module)
try:
    graphlib.TopologicalSorter(needs).prepare()
except graphlib.CycleError as error:
    sys.exit(" needs ".join(error.args[1][::-1]))
print(len(needs))
"""


def _needs(*modules: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else None
    return subprocess.run(
        [sys.executable, "-c", _WHO_NEEDS_WHOM, *modules],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_any_module_can_be_imported_first() -> None:
    """No module needs, while it is imported, one that needs it: so each can be the first."""
    names = {
        name.removeprefix("src/tailwatch/").removesuffix(".py").removesuffix("/__init__")
        for name in files("src", *ROOMS)
        if name.endswith(".py") and not name.endswith("__main__.py")
    }
    modules = sorted("tailwatch." + name.replace("/", ".") for name in names - {"__init__"})
    outcome = _needs(*modules)
    assert outcome.returncode == 0, outcome.stderr
    assert int(outcome.stdout) > 100


def test_circle_of_imports_is_found(tmp_path: Path) -> None:
    """A package that imports what is in it, and a module that needs both, are a circle."""
    tree = copy(tmp_path, "src", *ROOMS, "pyproject.toml")
    with (tree / "agents/node/base.py").open("a") as module:
        module.write("\nimport tailwatch.agents.node.collectors.host\n")
    outcome = _needs("tailwatch.agents.node.collectors", path=tree / "src")
    assert outcome.returncode == 1
    assert "tailwatch.agents.node.base needs tailwatch.agents.node.collectors" in outcome.stderr
