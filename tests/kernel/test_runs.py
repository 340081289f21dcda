"""The run directory and its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tailwatch.errors import UsageError
from tailwatch.files import append_line, write_durably
from tailwatch.records import Event
from tailwatch.runs import Attempt, RunDirectory, new_run_name


def event(number: int, kind: str = "start") -> Event:
    """An event of the first attempt."""
    return Event(run="r", attempt=1, time_ns=number, kind=kind, source="rank/0")  # type: ignore[arg-type] # a test may pass any kind


def test_a_new_run_has_its_places(tmp_path: Path) -> None:
    """Creating a run makes its directories and its manifest."""
    run = RunDirectory.create(tmp_path / "run", {"seed": 1})
    assert msgspec.json.decode(run.manifest.read_bytes()) == {"seed": 1}
    for place in (run.attempts, run.steps, run.orders, run.checkpoints, run.evidence, run.logs):
        assert place.is_dir()
    assert run.name == "run"


def test_a_run_never_overwrites_another(tmp_path: Path) -> None:
    """A directory that holds anything is refused by name."""
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(UsageError, match="never overwrites"):
        RunDirectory.create(tmp_path, {})
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"


def test_a_place_that_cannot_be_written_is_wrong_usage(tmp_path: Path) -> None:
    """A file where a directory should be made is one line, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file/run"):
        RunDirectory.create(tmp_path / "file" / "run", {})


def test_events_of_several_processes_stay_whole(tmp_path: Path) -> None:
    """Three processes appending at once give as many whole lines as they wrote."""
    code = (
        "import sys; from pathlib import Path; from tailwatch.runs import RunDirectory;"
        "from tailwatch.records import Event; run = RunDirectory(Path(sys.argv[1]));"
        "[run.append_event(Event(run='r', attempt=int(sys.argv[2]), time_ns=n, kind='start',"
        " source='x' * 300)) for n in range(200)]"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)], env=environment)
        for n in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    events = RunDirectory(tmp_path).read_events()
    assert len(events) == 600
    for writer in range(3):
        assert [e.time_ns for e in events if e.attempt == writer] == list(range(200))


def test_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    """Half an event at the end was never written."""
    run = RunDirectory(tmp_path)
    run.append_event(event(1))
    append_line(run.events, b'{"type":"event","ru')
    assert [e.time_ns for e in run.read_events()] == [1]


def test_a_run_without_events_has_none(tmp_path: Path) -> None:
    """Reading before the first event is no error."""
    assert RunDirectory(tmp_path).read_events() == []
    assert RunDirectory(tmp_path).read_attempts() == []


def test_a_claim_not_yet_filled_in_is_left_out(tmp_path: Path) -> None:
    """An attempt claimed and killed before it said anything is not an attempt to aim at."""
    run = RunDirectory.create(tmp_path / "run", {})
    for number in (2, 1):
        claim = Attempt(attempt=number, world_size=4, started_ns=number)
        write_durably(run.attempts / f"{number:04d}.json", msgspec.json.encode(claim))
    (run.attempts / "0003.json").touch()
    assert [a.attempt for a in run.read_attempts()] == [1, 2]


def test_a_run_that_ever_committed_knows_it(tmp_path: Path) -> None:
    """Whether a run committed does not depend on what lies in its checkpoints now."""
    run = RunDirectory(tmp_path)
    assert not run.has_committed()
    run.mark_committed(5)
    run.mark_committed(9)
    assert run.has_committed()
    assert run.committed.read_bytes() == b'{"first_committed_step":5}'


def test_run_names_sort_by_time_and_do_not_repeat() -> None:
    """Names made in one second differ."""
    names = {new_run_name("demo") for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("demo-") for name in names)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """Writing leaves the new content and no temporary file behind."""
    path = tmp_path / "state.json"
    write_durably(path, b"old")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state.json"]
