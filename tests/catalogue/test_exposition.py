"""The exposition: what others read in it is what was put into it."""

from __future__ import annotations

import math
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tailwatch.catalogue import STEP_SECONDS_BOUNDS, UnknownMetricError
from tailwatch.exposition import Snapshot
from tailwatch.tools import find_tool

JOB = {"run": "r", "workload": "w"}


def lint(exposition: bytes) -> str:
    """Return what `promtool check metrics` has to say."""
    done = subprocess.run(
        [find_tool("promtool", pinned=True), "check", "metrics"],
        input=exposition,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return (done.stdout + done.stderr).decode()


def test_help_and_type_come_once() -> None:
    """Samples of one metric stand together under one HELP and one TYPE, in whatever order added."""
    snapshot = Snapshot()
    snapshot.add("tailwatch_node_rings", 1, node="a")
    snapshot.add("tailwatch_node_records_total", 7, node="a")
    snapshot.add("tailwatch_node_rings", 2.5, node="b")
    assert snapshot.render().decode() == (
        "# HELP tailwatch_node_rings Rings that are being read.\n"
        "# TYPE tailwatch_node_rings gauge\n"
        'tailwatch_node_rings{node="a"} 1\n'
        'tailwatch_node_rings{node="b"} 2.5\n'
        "# HELP tailwatch_node_records_total Records taken from rings into the step log.\n"
        "# TYPE tailwatch_node_records_total counter\n"
        'tailwatch_node_records_total{node="a"} 7\n'
    )


def test_unknown_is_absent() -> None:
    """A value that is not known leaves no trace, not even its HELP."""
    snapshot = Snapshot()
    snapshot.add("tailwatch_job_loss", None, **JOB)
    assert snapshot.render() == b""


def test_what_the_catalogue_does_not_hold_raises() -> None:
    """Unknown names, missing and surplus labels and the wrong kind raise at once."""
    snapshot = Snapshot()
    with pytest.raises(UnknownMetricError, match="tailwatch_nothing"):
        snapshot.add("tailwatch_nothing", 1)
    with pytest.raises(ValueError, match=r"labels \['run'\], expected \['run', 'workload'\]"):
        snapshot.add("tailwatch_job_loss", 1, run="r")
    with pytest.raises(ValueError, match="labels"):
        snapshot.add("tailwatch_job_loss", None, **JOB, rank=1)
    with pytest.raises(ValueError, match="histogram"):
        snapshot.add("tailwatch_job_step_seconds", 1, **JOB)
    with pytest.raises(ValueError, match="counts"):
        snapshot.add_histogram("tailwatch_job_step_seconds", [1, 2], 3.0, **JOB)
    with pytest.raises(ValueError, match="counts"):
        snapshot.add_histogram("tailwatch_job_loss", [1], 3.0, **JOB)


_NUMBERS = st.floats() | st.integers(0, 1 << 60)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), _NUMBERS, max_size=8))
def test_labels_and_values_survive(samples: dict[str, float]) -> None:
    """Any label text and any number is read back by prometheus_client as it was."""
    snapshot = Snapshot()
    for node, value in samples.items():
        snapshot.add("tailwatch_node_rings", value, node=node)
    text = snapshot.render().decode()
    found = {
        sample.labels["node"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found.keys() == samples.keys()
    for node, value in samples.items():
        assert found[node] == pytest.approx(value, rel=1e-15, nan_ok=True)


def test_histogram_is_cumulative() -> None:
    """Counts per bucket become cumulated buckets with +Inf, sum and count."""
    counts = [0] * (len(STEP_SECONDS_BOUNDS) + 1)
    counts[0], counts[3], counts[-1] = 2, 5, 1
    snapshot = Snapshot()
    snapshot.add_histogram("tailwatch_job_step_seconds", counts, 64.5, **JOB)
    (family,) = text_string_to_metric_families(snapshot.render().decode())
    assert family.type == "histogram"
    buckets = [s for s in family.samples if s.name.endswith("_bucket")]
    assert [float(s.labels["le"]) for s in buckets] == [*STEP_SECONDS_BOUNDS, math.inf]
    values = [s.value for s in buckets]
    assert values == [2, 2, 2, *[7] * (len(values) - 4), 8]
    assert [s.value for s in family.samples[-2:]] == [64.5, 8]


def test_promtool_has_nothing_to_say() -> None:
    """An exposition with every kind of metric passes promtool's lint."""
    snapshot = Snapshot()
    counts = [1] * (len(STEP_SECONDS_BOUNDS) + 1)
    snapshot.add_histogram("tailwatch_job_step_seconds", counts, 1.0, **JOB)
    snapshot.add("tailwatch_job_restarts_total", 0, **JOB)
    snapshot.add("tailwatch_job_loss", math.nan, **JOB)
    snapshot.add("tailwatch_job_attempt_info", 1, **JOB, attempt=1, configuration='a"b\\c\nd')
    assert lint(snapshot.render()) == ""
    assert lint(b"tailwatch_x_total 1\n") != ""
