"""What the job agent counts of checkpoints."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.ranks import event
from tailwatch.agents.job.checkpoints import Checkpoints
from tailwatch.catalogue.checkpoint import CHECKPOINT_FAILURES, CHECKPOINT_PHASES
from tailwatch.exposition import Snapshot

PREFIX = "tailwatch_checkpoint_"


def values(checkpoints: Checkpoints) -> dict[str, float]:
    """Return the samples by name, with the value of their own label behind it."""
    snapshot = Snapshot()
    checkpoints.add(snapshot, {"run": "r", "workload": "w"})
    found = {}
    for family in text_string_to_metric_families(snapshot.render().decode()):
        for sample in family.samples:
            own = [v for k, v in sample.labels.items() if k not in ("run", "workload")]
            found[" ".join([sample.name.removeprefix(PREFIX), *own])] = sample.value
    return found


SAVED = {
    "bytes": 1000,
    "phases": {"stage": 0.25, "write": 1.0, "commit": 0.5, "verify": 0.125, "retain": 2.0},
    "free_bytes": 5000,
    "free_inodes": 70,
    "quarantined": 2,
    "saves_until_full": 5,
}


def test_counters_are_there_from_the_start() -> None:
    """All phases and reasons are 0 before the first event, and what is not known is absent."""
    found = values(Checkpoints())
    assert found == {
        **dict.fromkeys(["saves_total", "saved_bytes_total", "loads_total"], 0.0),
        **{f"phase_seconds_total {phase}": 0.0 for phase in CHECKPOINT_PHASES},
        **{f"failures_total {reason}": 0.0 for reason in CHECKPOINT_FAILURES},
    }


def test_saves_loads_and_failures_add_up_over_a_restart() -> None:
    """Seconds by phase, bytes, failures by reason and the state of the disk, kept in the state."""
    first = Checkpoints()
    for kind in ("staged", "written", "committed", "verified"):
        first.take(event(f"checkpoint_{kind}", step=10, detail=SAVED))
    first.take(event("failure", step=20, detail={"checkpoint": "full", "reason": "no space"}))
    first.take(event("failure", detail={"exit_codes": {"0": -9}}))
    first.take(event("failure", step=20, detail={"checkpoint": "?", "reason": "never heard of"}))
    second = msgspec.json.decode(msgspec.json.encode(first), type=Checkpoints)
    second.take(event("checkpoint_staged", step=20, detail={}))
    detail = {"phases": {"load_verify": 0.5, "load": 1.5}, "quarantined": 3, "free_bytes": 4000}
    second.take(event("restore", step=10, detail=detail))
    found = values(second)
    assert (found["saves_total"], found["saved_bytes_total"], found["loads_total"]) == (1, 1000, 1)
    assert found["phase_seconds_total write"] == 1.0
    assert found["phase_seconds_total load"] == 1.5
    assert (found["last_step staged"], found["last_step verified"]) == (20, 10)
    assert (found["failures_total no space"], found["failures_total other"]) == (1, 1)
    assert (found["quarantined"], found["free_bytes"], found["size_bytes"]) == (3, 4000, 1000)
    assert "free_inodes" not in found, "the newest event did not know them"
    assert found["saves_until_full"] == 5


@pytest.mark.parametrize("odd", ["many", None, [1], {"write": "long"}, True])
def test_what_is_no_number_is_left_out(odd: object) -> None:
    """An event of an older or foreign trainer costs its figure, not the agent."""
    checkpoints = Checkpoints()
    checkpoints.take(
        event(
            "checkpoint_verified", step=1, detail={"bytes": odd, "phases": odd, "free_bytes": odd}
        )
    )
    found = values(checkpoints)
    assert (found["saves_total"], found["saved_bytes_total"]) == (1, 0)
    assert "free_bytes" not in found
