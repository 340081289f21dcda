"""What the job agent counts of restarts."""

from __future__ import annotations

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from support.ranks import event
from tailwatch.agents.job.restarts import Restarts
from tailwatch.catalogue.restart import RESTART_PARTS
from tailwatch.exposition import Snapshot

PREFIX = "tailwatch_restart_"
PARTS = {part: float(index + 1) for index, part in enumerate(RESTART_PARTS)}


def _values(restarts: Restarts) -> dict[str, float]:
    snapshot = Snapshot()
    restarts.add(snapshot, {"run": "r", "workload": "w"})
    return {
        " ".join([sample.name.removeprefix(PREFIX), sample.labels.get("part", "")]).strip():
        sample.value
        for family in text_string_to_metric_families(snapshot.render().decode())
        for sample in family.samples
    }  # fmt: skip


def test_counters_are_there_from_the_start() -> None:
    """All parts are 0 before the first restart, and there is no last one."""
    assert _values(Restarts()) == {
        "measured_total": 0.0,
        **{f"part_seconds_total {part}": 0.0 for part in RESTART_PARTS},
    }


def test_parts_add_up_over_a_restart_of_the_agent_and_count_once() -> None:
    """The same event read again changes nothing; the state goes on where it was."""
    first = Restarts()
    first.take(event("resumed", attempt=2, detail={"parts": PARTS}))
    second = msgspec.json.decode(msgspec.json.encode(first), type=Restarts)
    second.take(event("resumed", attempt=2, detail={"parts": PARTS}))
    second.take(event("restart", attempt=3))
    second.take(event("resumed", attempt=3, detail={"parts": dict.fromkeys(RESTART_PARTS, 0.5)}))
    found = _values(second)
    assert found["measured_total"] == 2
    assert found["part_seconds_total detect"] == 1.5
    assert found["part_seconds_total first_step"] == 7.5
    assert found["last_part_seconds first_step"] == 0.5


def test_an_event_without_all_parts_is_left_out() -> None:
    """A newer trainer, a cut detail, nonsense: nothing is counted and nothing breaks."""
    restarts = Restarts()
    for detail in ({}, {"cut": "..."}, {"parts": {"detect": 1.0}}, {"parts": [1]},
                   {"parts": PARTS | {"load": "long"}}):  # fmt: skip
        restarts.take(event("resumed", attempt=2, detail=detail))
    assert restarts == Restarts()
