"""Dumps that are none: one clear line, and nothing of them is run."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.flight import recorders, write
from tailwatch.errors import UsageError
from tailwatch.flight_recorder import diagnose, read

FIXTURES = Path(__file__).parent / "fixtures"


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._target}",)


def refusal(directory: Path) -> str:
    """Return the line that refuses a directory; it has to be one."""
    with pytest.raises(UsageError) as caught:
        diagnose(read(directory))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def good(directory: Path) -> Path:
    """Write dumps of two ranks that hang."""
    ranks = recorders(2)
    ranks[0].call("0")
    return write(directory, ranks)


def test_a_pickle_that_wants_code_runs_nothing(tmp_path: Path) -> None:
    """Classes and functions are refused before they are looked up."""
    good(tmp_path)
    (tmp_path / "_dump_1").write_bytes(pickle.dumps({"entries": [Evil(tmp_path / "ran")]}))
    assert "system" in refusal(tmp_path)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "_dump_1").write_bytes(pickle.dumps({"version": Path()}))
    assert "_dump_1" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x80\x02}q\x00(X", "_dump_1"),
        (b"not a dump at all", "_dump_1"),
        (b'{"version": "2.9", "entries": [', "JSON"),
        (b'{"version": "2.9", "entries": [NaN]}', "NaN"),
        (b"[" * 100_000, "_dump_1"),
        (b'{"version": "9.1", "entries": []}', "9.1"),
        (b'{"entries": []}', "version"),
        (b'{"version": "2.9"}', "entries"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "_dump_1"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f", "_dump_1"),
    ],
)
def test_files_that_are_no_dumps(content: bytes, told: str, tmp_path: Path) -> None:
    """Cut, foreign and forged files are refused with their name and what is wrong."""
    good(tmp_path)
    (tmp_path / "_dump_1").write_bytes(content)
    assert told in refusal(tmp_path)


@pytest.mark.parametrize("time_ns", [-1, 10**20, "soon", float("nan")])
def test_times_that_are_none(time_ns: object, tmp_path: Path) -> None:
    """Negative, absurd and missing numbers are refused with their place."""
    ranks = recorders(2)
    ranks[0].call("0", time_created_ns=time_ns)
    assert "time_created_ns" in refusal(write(tmp_path, ranks))


def test_dumps_that_do_not_belong_together(tmp_path: Path) -> None:
    """Other versions, other jobs and other attempts in one directory are refused."""
    good(tmp_path / "versions")
    other = recorders(2)[1]
    other.version = "2.4"
    write(tmp_path / "versions", [other])
    assert "2.4" in refusal(tmp_path / "versions")

    for rank in range(8):
        (tmp_path / "jobs").mkdir(exist_ok=True)
        for source, number in (("gpu_error_1st", rank), ("lock_gil_1st", rank + 8)):
            data = (FIXTURES / source / f"_dump_{number}").read_bytes()
            (tmp_path / "jobs" / f"_dump_{number}").write_bytes(data)
    assert "one job" in refusal(tmp_path / "jobs")

    ranks = recorders(2)
    ranks[0].call("0")
    ranks[1].call("0", time_created_ns=1_758_610_505_000_000_000 + 7200 * 10**9)
    assert "one attempt" in refusal(write(tmp_path / "attempts", ranks))


def test_a_directory_without_dumps(tmp_path: Path) -> None:
    """No directory, no dumps and a rank twice are wrong usage; empty dumps alone are unknown."""
    assert "_dump_0" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "nowhere")
    good(tmp_path / "twice")
    (tmp_path / "twice" / "nccl_trace_rank_1").write_bytes(b"x")
    assert "rank 1 stands in" in refusal(tmp_path / "twice")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_dump_0").touch()
    assert diagnose(read(tmp_path / "empty")).verdict == "unknown"


def test_what_lies_beside_dumps_is_left_alone(tmp_path: Path) -> None:
    """Logs, cores and notes in the directory are no dumps."""
    good(tmp_path)
    (tmp_path / "fault_injection.log").write_text("Rank 12")
    (tmp_path / "core.4711").write_bytes(b"\x7fELF")
    assert diagnose(read(tmp_path)).root_ranks == [1]


@given(st.data())
def test_cut_and_flipped_dumps_never_fail_otherwise(data: st.DataObject) -> None:
    """Whatever happens to the bytes of a dump, it is read or refused."""
    source = bytearray((FIXTURES / "gloo" / "_dump_0").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        source[data.draw(st.integers(0, len(source) - 1))] = data.draw(st.integers(0, 255))
    cut = source[: data.draw(st.integers(1, len(source)))]
    with TemporaryDirectory() as name:
        (Path(name) / "_dump_0").write_bytes(cut)
        with contextlib.suppress(UsageError):
            assert diagnose(read(Path(name))).verdict in ("rank", "network", "none", "unknown")


def test_command_line(tmp_path: Path) -> None:
    """The command prints the agreed JSON, text for people, and a status that tells the verdict."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tailwatch", "hang", *arguments], capture_output=True, text=True
        )

    done = run(str(FIXTURES / "gpu_error_1st"), "--json")
    assert set(json.loads(done.stdout)) == {
        "verdict", "root_ranks", "groups", "victims", "reasons",
    }  # fmt: skip
    assert done.returncode == 1
    assert run(str(FIXTURES / "gpu_error_1st")).stdout.startswith("rank 12\n")
    finished, apart = recorders(2), recorders(2)
    for rank in finished:
        rank.call("0", done=True)
    apart[0].call("0", "all_reduce")
    apart[1].call("0", "broadcast")
    assert run(str(write(tmp_path / "finished", finished))).returncode == 0
    assert run(str(write(tmp_path / "apart", apart))).returncode == 3
    done = run(str(tmp_path / "none"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
