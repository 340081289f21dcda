"""The judge on evidence that is cut, damaged, spoiled or ends early."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.evidence_edits import (
    Edit,
    cut_after,
    edit_deliveries,
    edit_lines,
    insert_after,
    moment,
)
from support.evidence_job import MONO_OFFSET_NS, SECOND
from support.judged import outcome, verdicts
from tailwatch.chaos.judge import judge
from tailwatch.errors import UsageError


def test_an_aborted_game_day_is_aborted(evidence: Path) -> None:
    """What ran before the abort keeps its verdict, the rest is ABORTED with the reason."""
    cut = moment(evidence, "undone", "rank-kill")

    def edit(line: dict[str, Any]) -> dict[str, Any] | None:
        return line if line["time_ns"] <= cut else None

    edit_lines(evidence / "timeline.jsonl", edit)
    edit_lines(evidence / "ledger.jsonl", edit)
    mono = cut - MONO_OFFSET_NS
    line = {"time_ns": cut, "mono_ns": mono, "kind": "aborted", "data": {"reason": "Ctrl-C"}}
    with (evidence / "timeline.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
    document = judge(evidence)
    assert document.verdict == "ABORTED"
    assert verdicts(document) == ["PASSED", "ABORTED", "ABORTED", "ABORTED"]
    assert "Ctrl-C" in document.reason


def test_a_killed_game_day_is_inconclusive(evidence: Path) -> None:
    """A timeline that just stops leaves the rest INCONCLUSIVE, not passed."""
    cut = moment(evidence, "experiment_finished", "rank-kill")
    edit_lines(evidence / "timeline.jsonl", lambda line: line if line["time_ns"] <= cut else None)
    edit_lines(evidence / "ledger.jsonl", lambda line: line if line["time_ns"] <= cut else None)
    document = judge(evidence)
    assert verdicts(document) == ["PASSED", "PASSED", "INCONCLUSIVE", "INCONCLUSIVE"]


def test_a_noted_clock_jump_is_never_a_pass(evidence: Path) -> None:
    """A clock jump that the runner noted makes the experiment it fell into INCONCLUSIVE."""
    at = moment(evidence, "undone", "rank-slow")
    insert_after(evidence, at, kind="clock_jump", data={"seconds": 30.0})
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert verdicts(document) == ["INCONCLUSIVE", "PASSED", "PASSED", "PASSED"]
    assert "+30.0 s" in document.reason


def test_a_clock_jump_that_nobody_noted_is_found(evidence: Path) -> None:
    """Wall time that moves against monotonic time on the timeline is a jump, noted or not."""
    after = moment(evidence, "injecting", "checkpoint-corrupt")

    def edit(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "mono_ns": line["mono_ns"] - 2 * SECOND * (line["time_ns"] > after)}

    edit_lines(evidence / "timeline.jsonl", edit)
    document = judge(evidence)
    assert verdicts(document) == ["PASSED", "PASSED", "INCONCLUSIVE", "PASSED"]
    assert document.verdict == "INCONCLUSIVE"


def test_a_lost_part_spoils_what_was_not_over(evidence: Path) -> None:
    """Prometheus lost during the second experiment spares the first and spoils the rest."""
    at = moment(evidence, "injected", "rank-kill")
    data = {"what": "prometheus", "reason": "exit status 2"}
    insert_after(evidence, at, kind="lost", data=data)
    document = judge(evidence)
    assert verdicts(document) == ["PASSED", "INCONCLUSIVE", "INCONCLUSIVE", "INCONCLUSIVE"]
    assert "prometheus (exit status 2)" in document.reason


@pytest.mark.parametrize(
    "name",
    [
        "plan.json",
        "timeline.jsonl",
        "ledger.jsonl",
        "webhook.jsonl",
        "events.jsonl",
        "steps/node-0.steplog",
        "queries.json",
    ],
)
def test_a_missing_file_is_named_and_never_a_pass(evidence: Path, name: str) -> None:
    """Without one of its files no evidence passes, and the reason says which file is missing."""
    (evidence / name).unlink()
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert f"{name} is missing" in document.reason


def test_missing_attempts_are_never_a_pass(evidence: Path) -> None:
    """Without the attempts nobody knows who ran where."""
    shutil.rmtree(evidence / "attempts")
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert "attempts/" in document.reason


@pytest.mark.parametrize(
    "name", ["timeline.jsonl", "ledger.jsonl", "webhook.jsonl", "events.jsonl"]
)
def test_a_line_cut_by_a_kill_at_the_end_is_left_out(evidence: Path, name: str) -> None:
    """Half a line at the end of a file was never written; the verdict stands."""
    with (evidence / name).open("ab") as file:
        file.write(b'{"time_ns":179611937')
    assert judge(evidence).verdict == "PASSED"


def test_a_frame_cut_at_the_end_of_a_step_log_is_left_out(evidence: Path) -> None:
    """Half a frame at the end of a step log was never written; the verdict stands."""
    with (evidence / "steps/node-1.steplog").open("ab") as file:
        file.write(b"\x80\x00\x00\x00\x01\x02")
    assert judge(evidence).verdict == "PASSED"


def test_a_damaged_frame_in_the_middle_is_named(evidence: Path) -> None:
    """One flipped bit in a step log is named with its place, and damage is no pass."""
    path = evidence / "steps/node-1.steplog"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert "steps/node-1.steplog is damaged (" in document.reason
    assert " bytes at " in document.reason


@pytest.mark.parametrize(
    "name", ["timeline.jsonl", "ledger.jsonl", "webhook.jsonl", "events.jsonl"]
)
def test_a_damaged_line_in_the_middle_is_named(evidence: Path, name: str) -> None:
    """A whole line that cannot be read is damage, and damage is no pass."""
    lines = (evidence / name).read_bytes().splitlines(keepends=True)
    lines.insert(1, b'{"time_ns": "noon"}\n')
    (evidence / name).write_bytes(b"".join(lines))
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert f"{name} line 2" in document.reason


def test_a_body_that_is_no_notification_is_named(evidence: Path) -> None:
    """A webhook body that no Alertmanager wrote is damage, and damage is no pass."""
    with (evidence / "webhook.jsonl").open("ab") as file:
        file.write(b'{"received_ns":1,"body":"hello"}\n')
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert "no Alertmanager notification" in document.reason


def test_a_query_without_series_is_no_pass(evidence: Path) -> None:
    """Missing data are never read as nothing happened."""
    queries = msgspec.json.decode((evidence / "queries.json").read_bytes())
    queries["steps"]["series"] = []
    (evidence / "queries.json").write_bytes(msgspec.json.encode(queries))
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert "steps has no series" in document.reason


def test_a_query_that_falls_silent_spoils_the_experiment(evidence: Path) -> None:
    """Prometheus without a sample during an experiment was not watching it."""
    begin = moment(evidence, "injecting", "node-drain") / 1e9
    queries = msgspec.json.decode((evidence / "queries.json").read_bytes())
    for series in queries["steps"]["series"]:
        series["values"] = [sample for sample in series["values"] if sample[0] < begin]
    (evidence / "queries.json").write_bytes(msgspec.json.encode(queries))
    assert verdicts(judge(evidence)) == ["PASSED", "PASSED", "PASSED", "INCONCLUSIVE"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda plan: {**plan, "speed": 3}, "speed"),
        (lambda plan: {**plan, "experiments": 3}, "experiments"),
        (lambda plan: {**plan, "experiments": plan["experiments"] * 2}, "experiments[0].name"),
    ],
)
def test_a_plan_that_cannot_be_understood_is_wrong_usage(
    evidence: Path, edit: Edit, words: str
) -> None:
    """An impossible plan is one line with file and place, not a verdict."""
    plan = msgspec.json.decode((evidence / "plan.json").read_bytes())
    (evidence / "plan.json").write_bytes(msgspec.json.encode(edit(plan)))
    with pytest.raises(UsageError) as caught:
        judge(evidence)
    assert "plan.json" in str(caught.value)
    assert words in str(caught.value)


def test_a_directory_without_evidence_is_wrong_usage(tmp_path: Path) -> None:
    """A directory that never was an evidence directory is refused by name."""
    with pytest.raises(UsageError, match="no evidence"):
        judge(tmp_path)


def test_a_runner_that_lost_prometheus_names_it(evidence: Path) -> None:
    """A game day that stopped for a lost part is INCONCLUSIVE and says which part was lost."""
    data = {"what": "prometheus", "reason": "exit status 2"}
    end = {"kind": "lost", "experiment": "rank-kill", "data": data}
    cut_after(evidence, "injected", "rank-kill", end)
    document = judge(evidence)
    assert verdicts(document)[0] == "PASSED"
    assert document.verdict == "INCONCLUSIVE"
    assert "prometheus (exit status 2)" in outcome(document, "checkpoint-corrupt").reason


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_runner_that_met_a_clock_jump_says_so(evidence: Path, seconds: float) -> None:
    """A game day that stopped for a clock jump, either way, is INCONCLUSIVE from there on."""
    end = {"kind": "clock_jump", "experiment": "rank-kill", "data": {"seconds": seconds}}
    cut_after(evidence, "injected", "rank-kill", end)
    document = judge(evidence)
    assert "PASSED" not in verdicts(document)[1:]
    assert document.verdict != "PASSED"
    assert f"{seconds:+.1f} s" in outcome(document, "rank-kill").reason


def test_an_abort_with_an_open_ledger_is_undo_failed(evidence: Path) -> None:
    """An interrupted game day that left its fault in force is worse than aborted."""
    end = {"kind": "aborted", "experiment": "rank-slow", "data": {"reason": "interrupted"}}
    cut_after(evidence, "injected", "rank-slow", end)
    edit_lines(evidence / "ledger.jsonl", lambda line: line if line["state"] == "open" else None)
    assert verdicts(judge(evidence))[0] == "UNDO_FAILED"


def test_not_back_on_the_baseline_stops_the_rest(evidence: Path) -> None:
    """When the runner stops because the job is not back on its baseline, the rest never ran."""
    end = {"kind": "baseline_not_met", "data": {"reason": "not back after rank-slow"}}
    cut_after(evidence, "experiment_finished", "rank-slow", end)
    edit_lines(
        evidence / "ledger.jsonl",
        lambda line: line if line["experiment"] == "rank-slow" else None,
    )
    document = judge(evidence)
    assert verdicts(document) == ["PASSED", *["BASELINE_NOT_MET"] * 3]


def test_a_delivery_before_its_alert_began_proves_nothing(evidence: Path) -> None:
    """A receiver that had an alert before Prometheus knew it is not believed."""
    edit_lines(evidence / "webhook.jsonl", lambda line: line | {"received_ns": 0})
    document = judge(evidence)
    assert document.verdict == "INCONCLUSIVE"
    assert "before its alert" in document.reason


def test_alerts_of_another_run_count_for_nothing(evidence: Path) -> None:
    """What another run's alerts say is not delivered for this one."""

    def edit(alert: dict[str, Any]) -> dict[str, Any]:
        return alert | {"labels": alert["labels"] | {"run": "another"}}

    edit_deliveries(evidence, edit)
    document = judge(evidence)
    assert verdicts(document) == ["DEVIATED"] * 4


def test_a_target_that_nobody_planned_proves_nothing(evidence: Path) -> None:
    """A plan that aims at one rank and a timeline that hit another do not belong together."""
    plan = msgspec.json.decode((evidence / "plan.json").read_bytes())
    plan["experiments"][0]["target"] = {"rank": 0}
    (evidence / "plan.json").write_bytes(msgspec.json.encode(plan))
    assert verdicts(judge(evidence))[0] == "INCONCLUSIVE"


def test_no_event_at_all_is_incomplete(evidence: Path) -> None:
    """A job without a single event has left incomplete evidence."""
    (evidence / "events.jsonl").write_bytes(b"")
    document = judge(evidence)
    assert "INCONCLUSIVE" in verdicts(document)
    assert "PASSED" not in verdicts(document)


@pytest.mark.parametrize("name", ["timeline.jsonl", "events.jsonl"])
def test_an_impossible_time_is_a_problem_and_no_crash(name: str, evidence: Path) -> None:
    """A time outside the years people can read is said, whatever it does to the rest."""
    lines = (evidence / name).read_bytes().splitlines()
    middle = msgspec.json.decode(lines[len(lines) // 2]) | {"time_ns": 10**30}
    lines[len(lines) // 2] = msgspec.json.encode(middle)
    (evidence / name).write_bytes(b"\n".join(lines) + b"\n")
    document = judge(evidence)
    assert document.verdict != "PASSED"
    assert f"{name}" in document.reason
