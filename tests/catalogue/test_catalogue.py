"""The catalogue: each metric once, well named, and the page printed from it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tailwatch.catalogue import CATALOGUE, UnknownMetricError, markdown, metric, metric_of_sample

ROOT = Path(__file__).parents[2]


def test_page_is_printed_from_the_catalogue() -> None:
    """docs/metrics.md equals what `python -m tailwatch.catalogue` prints."""
    printed = subprocess.run(
        [sys.executable, "-m", "tailwatch.catalogue"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "src",
    ).stdout
    assert (ROOT / "docs" / "metrics.md").read_text() == printed == markdown()


def test_names_follow_the_rules() -> None:
    """Prefix, base units, `_total` on counters and nowhere else, `_info` for identity."""
    for name, described in CATALOGUE.items():
        assert name == described.name
        assert name.startswith("tailwatch_")
        assert name.endswith("_total") == (described.kind == "counter"), name
        assert name.endswith("_info") == (described.kind == "info"), name
        assert not name.endswith(("_ms", "_milliseconds", "_mb", "_percent")), name
        base = name.removesuffix("_total")
        if described.unit in ("seconds", "bytes", "ratio"):
            assert base.endswith(f"_{described.unit}"), name


def test_labels_follow_the_rules() -> None:
    """Never `job`, no `rank` on a histogram, `attempt` only on identity, run with workload."""
    for name, described in CATALOGUE.items():
        labels = set(described.labels)
        assert "job" not in labels, name
        assert "le" not in labels, name
        assert not (described.kind == "histogram" and "rank" in labels), name
        assert not ("attempt" in labels and described.kind != "info"), name
        assert not (name.startswith("tailwatch_job_") and not {"run", "workload"} <= labels), name
        assert len(labels) == len(described.labels), name


def test_everything_is_explained() -> None:
    """Each metric has a help of one sentence at least, and says where its number comes from."""
    for name, described in CATALOGUE.items():
        assert described.help.endswith("."), name
        assert described.source.startswith(("job agent: ", "node agent: ")), name


def test_step_buckets_are_fine_enough() -> None:
    """Buckets reach from 1 ms to 60 s in steps of at most 1.25."""
    bounds = metric("tailwatch_job_step_seconds").bounds
    assert bounds[0] == 0.001
    assert bounds[-1] == 60
    assert all(1 < b / a <= 1.25 for a, b in itertools.pairwise(bounds))
    assert all((d.kind == "histogram") == bool(d.bounds) for d in CATALOGUE.values())


def test_unknown_names_fail_loudly() -> None:
    """A lookup of what is not there raises and names it."""
    with pytest.raises(UnknownMetricError, match="tailwatch_nothing"):
        metric("tailwatch_nothing")
    with pytest.raises(UnknownMetricError):
        metric_of_sample("tailwatch_job_loss_bucket")


def test_samples_of_a_histogram_are_found() -> None:
    """Bucket, sum and count belong to their histogram."""
    for suffix in ("", "_bucket", "_sum", "_count"):
        name = f"tailwatch_job_step_seconds{suffix}"
        assert metric_of_sample(name).name == "tailwatch_job_step_seconds"
