"""Prometheus, Alertmanager and their command-line tools: which builds are ours, where they lie.

Contract: `tools/get.py` in a checkout builds what `BUILDS` says into `directory_of(build)`;
`find_tool` finds it there, or on PATH where that is good enough. The directory's name is a digest
of the module files and the flags, so a changed pin never finds an old binary. Only the standard
library is needed: the set-up uses this module before anything is installed.

Cost: two small files hashed; one `--version` call when a tool is taken from PATH.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from tailwatch.errors import UsageError

MODULES = Path(__file__).resolve().parents[2] / "tools"
"""Where a checkout keeps the Go modules; an installed wheel has none."""

Version = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Build:
    """One Go module that gives some programs.

    Attributes:
        name: the folder below `tools/` with go.mod and go.sum, and the name people use.
        programs: binaries it gives, by the package each is built from.
        flags: arguments of `go build`.
        oldest: (major, minor) from which a program on PATH serves instead, outside the tests.
        empty_pages: folders the module embeds but does not ship; each gets an empty page.
    """

    name: str
    programs: dict[str, str]
    flags: tuple[str, ...]
    oldest: Version
    empty_pages: tuple[str, ...] = ()


def _flags(version: str, *extra: str) -> tuple[str, ...]:
    stamp = f"-X github.com/prometheus/common/version.Version={version}"
    return ("-trimpath", "-buildvcs=false", *extra, "-ldflags", f"-s -w {stamp}")


BUILDS = (
    Build(
        name="prometheus",
        programs={
            "prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
            "promtool": "github.com/prometheus/prometheus/cmd/promtool",
        },
        flags=_flags("3.16.0", "-tags", "remove_all_sd,enable_kubernetes_sd"),
        oldest=(2, 42),
    ),
    Build(
        name="alertmanager",
        programs={
            "alertmanager": "github.com/prometheus/alertmanager/cmd/alertmanager",
            "amtool": "github.com/prometheus/alertmanager/cmd/amtool",
        },
        flags=_flags("0.35.0", "-mod=vendor"),
        oldest=(0, 25),
        empty_pages=(
            "vendor/github.com/prometheus/alertmanager/ui/app/dist/elm",
            "vendor/github.com/prometheus/alertmanager/ui/app/dist/mantine",
        ),
    ),
)

BENCH_BUILDS = (
    Build(
        name="node_exporter",
        programs={"node_exporter": "github.com/prometheus/node_exporter"},
        flags=_flags("1.10.2"),
        oldest=(1, 10),
    ),
)
"""Peers to be measured against; `python tools/get.py NAME` builds one when it is wanted."""


def cache_root() -> Path:
    """Return `tailwatch/` below XDG_CACHE_HOME, or below ~/.cache when that is unset."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path is to be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "tailwatch"


def directory_of(build: Build, *, modules: Path = MODULES) -> Path:
    """Return the cache directory that holds (or will hold) the programs of `build`.

    Raises:
        FileNotFoundError: `modules` has no such module, as in an installed wheel.
    """
    digest = hashlib.sha256()
    for part in (
        (modules / build.name / "go.mod").read_bytes(),
        (modules / build.name / "go.sum").read_bytes(),
        "\0".join(build.flags).encode(),
        f"{platform.system()} {platform.machine()}".encode(),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return cache_root() / "tools" / build.name / digest.hexdigest()[:16]


def find_tool(name: str, *, pinned: bool = False) -> Path:
    """Return the path of `prometheus`, `promtool`, `alertmanager` or `amtool`.

    The pinned build comes first. Without one a program on PATH serves if it is new enough
    (Prometheus 2.42, Alertmanager 0.25), unless `pinned` asks for exactly ours, as tests do.

    Raises:
        UsageError: there is none, with what to run to get it.
    """
    builds = (*BUILDS, *BENCH_BUILDS)
    build = next((build for build in builds if name in build.programs), None)
    if build is None:
        known = ", ".join(program for build in builds for program in build.programs)
        raise UsageError(f"no such tool; known are {known}", source=name)
    try:
        ours = directory_of(build) / name
    except FileNotFoundError:
        ours = None
    if ours is not None and os.access(ours, os.X_OK):
        return ours
    how = "make setup" if build in BUILDS else f"python tools/get.py {build.name}"
    advice = f"run `{how}` in a checkout (it builds {build.name})"
    if pinned:
        raise UsageError(f"the pinned build is not there; {advice}", source=name)
    oldest = ".".join(map(str, build.oldest))
    advice += f" or put {name} >= {oldest} on PATH"
    on_path = shutil.which(name)
    if on_path is None:
        raise UsageError(f"not found; {advice}", source=name)
    version = _version(Path(on_path))
    if version is None:
        raise UsageError(f"`{on_path} --version` names no version; {advice}", source=name)
    if version < build.oldest:
        found = ".".join(map(str, version))
        raise UsageError(f"{on_path} is version {found}, which is too old; {advice}", source=name)
    return Path(on_path)


def _version(program: Path) -> Version | None:
    """Ask a program of the Prometheus family for its version; None when it does not say."""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"version (\d+)\.(\d+)\.", answer.stdout + answer.stderr)
    return (int(match[1]), int(match[2])) if match else None
