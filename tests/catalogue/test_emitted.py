"""What agents really emit and rules really name is in the catalogue, and promtool agrees."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support.agents import job_agent, node_agent
from support.procs import eventually
from support.ranks import append_steps, event, ring
from tailwatch.alerts.rules import rules
from tailwatch.catalogue import CATALOGUE, checkpoint, job, metric_of_sample, node, restart
from tailwatch.catalogue.restart import RESTART_PARTS
from tailwatch.records import encode
from tailwatch.ring import MarkCode
from tailwatch.statistics import N_EFF_FOR_P99
from tailwatch.tools import find_tool

# Shown by sources that fail, or that hand on counters of a device.
FAULTS = {"tailwatch_source_errors_total", "tailwatch_source_resets_total"}
SAVED = {
    "bytes": 1000,
    "phases": {"write": 0.5},
    "free_bytes": 10**9,
    "free_inodes": 10**6,
    "quarantined": 0,
    "saves_until_full": 12,
}


def expositions(root: Path) -> list[bytes]:
    """Return what a node agent and a job agent serve for a job that has seen everything."""
    with node_agent(root) as node:
        for rank in range(2):
            writer = ring(root / "rings", rank, world_size=2, record_slots=1024)
            writer.mark(MarkCode.STEP)
            for kind in ("checkpoint_verified", "checkpoint_refused"):
                writer.append(encode(event(kind, step=1, rank=rank, detail=SAVED)))
            parts = dict.fromkeys(RESTART_PARTS, 0.1)
            writer.append(encode(event("resumed", step=1, rank=rank, detail={"parts": parts})))
            append_steps(writer, rank, 1, N_EFF_FOR_P99 + 40, world_size=2)
        assert eventually(
            lambda: node.value("tailwatch_node_records_total") == 2 * (N_EFF_FOR_P99 + 43)
        )
        with job_agent(root, {"node-0": node.address}, world_size=2) as job:
            assert eventually(lambda: job.value("tailwatch_job_iteration_p99_seconds") is not None)
            return [node.get("/metrics")[1], job.get("/metrics")[1]]


def test_expositions_and_catalogue_agree(tmp_path: Path) -> None:
    """Both agents emit what the catalogue holds, as it holds it, and all there is about a job."""
    emitted = set()
    for exposition in expositions(tmp_path):
        checked = subprocess.run(
            [find_tool("promtool", pinned=True), "check", "metrics"],
            input=exposition,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
        for family in text_string_to_metric_families(exposition.decode()):
            for sample in family.samples:
                described = metric_of_sample(sample.name)
                assert set(sample.labels) - {"le"} == set(described.labels)
                expected = "gauge" if described.kind == "info" else described.kind
                assert family.type == expected
                assert family.documentation == described.help
                emitted.add(described.name)
    # The sources of devices have recordings and tests of their own.
    areas = {
        described.name for area in (job, restart, checkpoint, node) for described in area.METRICS
    }
    assert emitted == areas - FAULTS
    assert emitted <= set(CATALOGUE)


def test_rules_name_only_what_the_catalogue_holds() -> None:
    """Every metric in an expression is in the catalogue, or recorded by a rule above it."""
    found = rules()
    recorded: set[str] = set()
    expressions = []
    for recording in found.recordings:
        expressions.append((recording.expr, set(recorded)))
        recorded.add(recording.record)
    expressions += [(alert.expr, recorded) for alert in found.alerts]
    for expression, known in expressions:
        for name in re.findall(r"(?<![:\w])[a-z_]+(?::\w+)*", expression):
            if ":" in name:
                assert name in known
            elif name.startswith("tailwatch_"):
                metric_of_sample(name)
