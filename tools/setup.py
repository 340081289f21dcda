"""Sets up the checkout: `.venv`, the packages of requirements.lock, Tailwatch itself, the tools.

    sh tools/setup.sh [--tools-optional]

Contract: each part leaves a stamp in `.venv/.setup` that names everything it depends on, so what
is done is not done again (the second run takes a tenth of a second) and an interrupted set-up goes
on with the part it was in. Every download is checked against a hash. pip's configuration (index,
proxy, certificates, find-links) holds for all of it. With `--tools-optional` a Prometheus or
Alertmanager that cannot be built may come from PATH. Standard library only.

Cost, cold: torch is 3 GB of downloads, minutes; then Prometheus, see get.py.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import get
from steps import StepFailed, only_one, run, say
from tailwatch.errors import UsageError
from tailwatch.tools import BUILDS, Build, find_tool

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / ".setup"

# Where pip looks for a setting of `pip install`, the one that wins last.
PIP_SCOPES = ("global", "install", ":env:")

# pip's name of a setting, and how uv is told the same.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}


def main(arguments: list[str]) -> int:
    """Run the parts that are not done yet; 1 when one failed, with the reason on stderr."""
    if arguments not in ([], ["--tools-optional"]):
        say("usage: sh tools/setup.sh [--tools-optional]")
        return 2
    try:
        with only_one(ROOT / "requirements.lock", "setting up this checkout"):
            make_environment()
            install_parts()
        for build in BUILDS:
            provide(build, optional=bool(arguments))
    except StepFailed as error:
        say(f"setup: {error}")
        return 1
    except KeyboardInterrupt:
        say("setup: interrupted; the next run goes on from here")
        return 130
    return 0


def make_environment() -> None:
    """Make `.venv`, or keep the one there if it works and has a Python that will do."""
    if Path(sys.prefix) != VENV and not _succeeds([PYTHON, "-c", "import pip"]):
        say(f"making .venv with {sys.executable}")
        log = ROOT / ".setup.log"
        run(
            "making .venv",
            [sys.executable, "-m", "venv", "--clear", VENV],
            log=log,
            advice="The standard library's venv is needed (Debian: apt-get install python3-venv).",
        )
        log.unlink()
    STAMPS.mkdir(exist_ok=True)


def install_parts() -> None:
    """Install what has no stamp saying that it was done with just the files there are now."""
    parts: list[tuple[str, str, Callable[[Path], None]]] = [
        ("uv", "tools/bootstrap.lock", install_uv),
        ("packages", "requirements.lock", install_packages),
        ("tailwatch", "pyproject.toml", install_tailwatch),
    ]
    for place, (part, file, install) in enumerate(parts):
        stamp = STAMPS / part
        digest = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
        if stamp.exists() and stamp.read_text() == digest:
            continue
        # A part stands on those before it: exact packages, for one, throw Tailwatch out.
        for later, _, _ in parts[place:]:
            (STAMPS / later).unlink(missing_ok=True)
        say(f"installing {part}")
        install(STAMPS / f"{part}.log")
        stamp.write_text(digest)


def install_uv(log: Path) -> None:
    """Install uv with pip: it installs the rest several times faster."""
    run(
        "installing uv",
        [
            PYTHON,
            *("-m", "pip", "install", "--disable-pip-version-check"),
            *("--require-hashes", "--only-binary=:all:", "-r", ROOT / "tools/bootstrap.lock"),
        ],
        log=log,
        advice="pip must reach a package index that has uv: see `python3 -m pip config list`.",
    )


def install_packages(log: Path) -> None:
    """Bring `.venv` to exactly what requirements.lock says."""
    environment, options = uv_settings()
    run(
        "installing packages",
        [
            VENV / "bin" / "uv",
            *("pip", "sync", "--require-hashes", *options),
            *("--python", PYTHON, ROOT / "requirements.lock"),
        ],
        log=log,
        advice=(
            "Run the same command again: what was downloaded is kept. 5 GB must be free for "
            "torch.\n  Instead, pip alone does it too: "
            ".venv/bin/python -m pip install --require-hashes -r requirements.lock"
        ),
        environment=environment,
    )


def install_tailwatch(log: Path) -> None:
    """Install this checkout in place, with the setuptools that the lock has brought."""
    environment, options = uv_settings()
    run(
        "installing tailwatch",
        [
            VENV / "bin" / "uv",
            *("pip", "install", "--no-deps", "--no-build-isolation", *options),
            *("--python", PYTHON, "--editable", ROOT),
        ],
        log=log,
        advice="Remove .venv and run the same command again.",
        environment=environment,
    )


def uv_settings() -> tuple[dict[str, str], list[str]]:
    """Return pip's configuration as variables and options of uv; uv's own settings win."""
    listing = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found: list[tuple[int, str, str]] = []
    for line in listing.stdout.splitlines():
        key, _, value = line.partition("=")
        scope, _, name = key.rpartition(".")
        if scope in PIP_SCOPES:
            found.append((PIP_SCOPES.index(scope), name, str(ast.literal_eval(value))))
    settings = {name: value for _, name, value in sorted(found)}
    environment = {
        variable: " ".join(settings[name].split())
        for name, variable in UV_VARIABLES.items()
        if settings.get(name) and variable not in os.environ
    }
    if "UV_INDEX" in environment:
        # pip looks through all indexes; the hashes in the lock make that safe.
        environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    options = []
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    for place in settings.get("find-links", "").split():
        options += ["--find-links", place]
    return environment, options


def provide(build: Build, *, optional: bool) -> None:
    """Build a tool, or accept the one on PATH if that is allowed and the build failed."""
    try:
        get.get(build)
    except StepFailed as error:
        if not optional:
            raise
        try:
            found = [find_tool(program) for program in build.programs]
        except UsageError as missing:
            raise StepFailed(f"{error}\n  ({missing})") from error
        say(f"setup: {error}")
        say(f"setup: going on with {', '.join(map(str, found))}")


def _succeeds(command: list[str | Path]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
