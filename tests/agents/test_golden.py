"""Golden expositions: what each kind of node shows, letter for letter, and who can read it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from support.golden import GOLDEN, NODES, once, steady
from support.sources import Reading
from tailwatch.catalogue import efa, infiniband, metric_of_sample
from tailwatch.tools import find_tool


@pytest.mark.parametrize("name", NODES)
def test_exposition_is_as_recorded(tmp_path: Path, name: str) -> None:
    """`--once` prints what is recorded for the node, and promtool has nothing to say about it."""
    NODES[name](tmp_path / "sys")
    exposition = once(tmp_path / "sys")
    assert steady(exposition) == (GOLDEN / f"{name}.prom").read_text()
    checked = subprocess.run(
        [find_tool("promtool", pinned=True), "check", "metrics"],
        input=exposition,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    for family in prometheus(exposition.decode()):
        for sample in family.samples:
            described = metric_of_sample(sample.name)
            assert set(sample.labels) - {"le"} == set(described.labels)


def test_recordings_show_every_rdma_metric() -> None:
    """Each metric of EFA and InfiniBand is in a recording, but for the one about saturation."""
    shown = {
        sample.name
        for name in NODES
        for family in prometheus((GOLDEN / f"{name}.prom").read_text())
        for sample in family.samples
    }
    wanted = {described.name for area in (efa, infiniband) for described in area.METRICS}
    assert wanted - shown == {"tailwatch_infiniband_counter_saturated"}


@pytest.mark.parametrize("name", NODES)
def test_both_formats_say_the_same(tmp_path: Path, name: str) -> None:
    """As OpenMetrics the same snapshot has the same samples as in Prometheus' text."""
    NODES[name](tmp_path / "sys")
    reading = Reading(tmp_path / "sys", "efa", "infiniband", "host")
    snapshot = reading.watch.render()
    reading.close()
    text = {
        (s.name, frozenset(s.labels.items())): s.value
        for family in prometheus(snapshot.render().decode())
        for s in family.samples
    }
    other = {
        (s.name, frozenset(s.labels.items())): s.value
        for family in openmetrics(snapshot.render_openmetrics().decode())
        for s in family.samples
    }
    assert text == other


def test_series_of_a_large_node(tmp_path: Path) -> None:
    """A node with 32 EFA devices stays far below 3,500 series, which leaves room for its GPUs."""
    lines = (GOLDEN / "p5.prom").read_text().splitlines()
    series = [line for line in lines if not line.startswith("#")]
    # Two of the health of each part are left out of the recording.
    assert len(series) + 2 * 64 < 2000
