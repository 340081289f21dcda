"""`tailwatch diagnose` as people meet it: inputs, JSON, exit statuses, canary, self-check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from support.episodes import FIXTURES, record, recorded_logs, recorded_table
from tailwatch.analysis import canary
from tailwatch.analysis.canary import EXPECTED, run_canary
from tailwatch.analysis.diagnosis import Diagnosis
from tailwatch.analysis.selfcheck import NEEDS, check_detectors
from tailwatch.analysis.source import diagnose_path
from tailwatch.analysis.steptable import step_tables
from tailwatch.cli import main
from tailwatch.errors import UsageError
from tailwatch.records import StepRecord, encode
from tailwatch.steplog import frame

KEYS = {
    "verdict", "slowdown", "workers", "onset_step", "explained_share", "confidence",
    "gpu_hours_lost", "what_if", "reasons",
}  # fmt: skip


class Command:
    """Runs the command in this process; each start of an interpreter would cost a second."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys, self._patch = capsys, patch

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr."""
        self._patch.setattr(sys, "argv", ["tailwatch", "diagnose", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self._capsys.readouterr()
        return int(str(ended.value.code)), captured.out, captured.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command."""
    return Command(capsys, monkeypatch)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with the step logs of a live fault."""
    directory = tmp_path_factory.mktemp("live")
    (directory / "steps").mkdir()
    for node, log in recorded_logs("live-rank2-300ms").items():
        (directory / "steps" / f"{node}.steplog").write_bytes(log)
    return directory


def test_json_of_a_trace_has_exactly_the_agreed_keys(tmp_path: Path) -> None:
    """The real program: one object on stdout and nothing else, status 1: a cause is named."""
    shutil.copy(FIXTURES / "trace-ST.parquet", tmp_path)
    outcome = subprocess.run(
        [sys.executable, "-m", "tailwatch", "diagnose", tmp_path, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (1, "")
    found = json.loads(outcome.stdout)
    assert set(found) == KEYS
    assert (found["verdict"], found["workers"]) == ("stage", [])


def test_json_of_a_run(live: Path, run: Command) -> None:
    """A run directory gives the same object, with what only runs have beside it."""
    status, out, _ = run(live, "--json")
    found = json.loads(out)
    assert status == 1
    assert set(found) - KEYS == {"micro_stalls", "idle_s"}
    (worker,) = found["workers"]
    assert set(worker) == {"rank", "dp_rank", "stage", "node", "phase", "ratio"}
    assert (worker["rank"], worker["node"], worker["phase"]) == (2, "node-1", "dense")


def test_text_names_rank_and_onset(live: Path, run: Command) -> None:
    """For people: the verdict, since when, and who, in a few lines."""
    _, out, _ = run(live)
    assert out.startswith("worker: ")
    assert "since step 18" in out
    assert "rank 2 on node-1: dense" in out


def test_a_step_log_alone_is_enough(live: Path) -> None:
    """One node's log of a run of two nodes has half of the ranks: unknown, and nobody accused."""
    found = diagnose_path(live / "steps" / "node-1.steplog")
    assert (found.verdict, found.workers) == ("unknown", [])


def test_unknown_has_its_own_status(tmp_path: Path, run: Command) -> None:
    """Too few steps end with 3."""
    logs = b"".join(frame(encode(record(s, r, 2))) for s in range(5) for r in range(2))
    (tmp_path / "node-0.steplog").write_bytes(logs)
    status, out, _ = run(tmp_path)
    assert (status, out.split()[0]) == (3, "unknown")


def test_beginning_of_a_frame_at_the_end_is_told(live: Path, tmp_path: Path) -> None:
    """What a kill leaves behind costs one record and is told in the reasons."""
    for path in (live / "steps").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[:-3])
    found = diagnose_path(tmp_path)
    assert found.verdict == "worker"
    assert any("in the middle of a record" in reason for reason in found.reasons)


def _log(*records: StepRecord) -> bytes:
    return b"".join(frame(encode(entry)) for entry in records)


BAD_LOGS = {
    "foreign": (b"kernel: eth0 is up\n" * 100, "neither a step log nor a parquet trace"),
    "empty": (b"", "holds no step record"),
    "damaged": (
        _log(record(1, 0, 2)) + b"\0" * 40 + _log(record(1, 1, 2)),
        "the step log is damaged",
    ),
    "future version": (_log(record(1, 0, 2, version=7)), "record of version 7"),
    "mixed versions": (
        _log(record(1, 0, 2), record(1, 1, 2, version=99)),
        "step 1, rank 1: record of version 99",
    ),
    "several runs": (_log(record(1, 0, 2), record(1, 1, 2, run="other")), "several runs"),
    "no world": (_log(record(1, 0, 0)), "world of 0 ranks"),
    "rank outside": (_log(record(1, 5, 4)), "is no rank of a world of 4"),
    "negative time": (_log(record(1, 0, 2, duration_ns=-5)), "holds a time of -5 ns"),
    "negative phase": (_log(record(1, 0, 2, phases_ns={"data": -1})), "holds a time of -1 ns"),
    "future time": (_log(record(1, 0, 2, start_ns=4 * 10**18)), "more than a day in the future"),
    "not msgpack": (frame(b"\xc1\xc1"), "no record of this version"),
}


@pytest.mark.parametrize(("log", "message"), BAD_LOGS.values(), ids=BAD_LOGS)
def test_bad_step_logs_are_refused(tmp_path: Path, log: bytes, message: str) -> None:
    """Foreign, damaged, mixed and impossible logs give one line and no verdict."""
    (tmp_path / "node-0.steplog").write_bytes(log)
    with pytest.raises(UsageError, match=message):
        diagnose_path(tmp_path)


def test_bad_paths_give_one_line_and_status_2(tmp_path: Path, run: Command) -> None:
    """Missing, empty and ambiguous places end with 2 and one line without a traceback."""
    both = tmp_path / "both"
    both.mkdir()
    for name in ("a.parquet", "b.parquet"):
        shutil.copy(FIXTURES / "trace-ST.parquet", both / name)
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, message in (
        ([tmp_path / "nowhere"], "is not there"),
        ([empty], "neither a run directory"),
        ([both], "holds 2 traces, name one of them: a.parquet, b.parquet"),
        ([], "is missing"),
        (["--canary", both], "takes no PATH"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


def test_canary_command(run: Command) -> None:
    """`--canary` lists every fault and ends with 0 when all are seen."""
    status, out, _ = run("--canary")
    assert status == 0
    assert len(out.splitlines()) == len(EXPECTED)


def test_canary_sees_every_known_fault() -> None:
    """The replayed faults are all seen, with their ranks."""
    results = run_canary()
    assert [result.fault for result in results] == list(EXPECTED)
    assert [result.fault for result in results if not result.passed] == []


def test_canary_notices_rules_that_see_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken engine that always answers none fails all faults of the canary."""
    monkeypatch.setattr(canary, "diagnose_records", lambda records: Diagnosis(verdict="none"))
    assert {result.fault for result in run_canary() if result.passed} == {"none"}


def test_detectors_say_what_they_can_see() -> None:
    """A recorded run feeds all detectors; without steps none has data; late records are dead."""
    table = recorded_table("quiet-4")
    states = {entry.detector: entry.state for entry in check_detectors(table, 1.0)}
    assert set(states) == set(NEEDS)
    assert set(states.values()) <= {"ok", "waiting"}
    assert {entry.state for entry in check_detectors(None, 0.0)} == {"no_data"}
    assert {entry.state for entry in check_detectors(table, 3600.0)} == {"dead_input"}


def test_blind_detectors_are_not_ok() -> None:
    """No waits, a rank without values, and inputs that are all 0 have their own states."""
    (table,) = step_tables([record(s, r, 4, waits_ns={}) for s in range(60) for r in range(4)])
    states = {entry.detector: entry.state for entry in check_detectors(table, 0.0)}
    assert states["lateness"] == "no_data"
    assert states["expert_load"] == "no_data"
    assert states["worker"] == "ok"
    duration = table.duration.copy()
    duration[:, 2] = np.nan
    blind = msgspec.structs.replace(table, duration=duration)
    states = {entry.detector: entry.state for entry in check_detectors(blind, 0.0)}
    assert states["p99"] == "not_a_number"
