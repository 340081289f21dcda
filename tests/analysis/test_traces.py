"""Verdicts on operation traces: public ones, made-up ones of every cause, and bad files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.episodes import FIXTURES
from support.traces import PipelineJob
from tailwatch.analysis.diagnosis import Diagnosis
from tailwatch.analysis.pipeline import Pipeline
from tailwatch.analysis.trace import read_trace
from tailwatch.analysis.tracerules import diagnose_trace
from tailwatch.errors import UsageError


def diagnosed(job: PipelineJob, path: Path) -> Diagnosis:
    """The diagnosis of a made-up job."""
    return diagnose_trace(read_trace(job.write(path / "trace.parquet")))


def test_slow_worker_of_a_public_trace() -> None:
    """Trace AR: dp rank 0 of stage 0 alone, S 1.973 within 2 %, published M_W 1.0017, 64 GPUs."""
    trace = read_trace(FIXTURES / "trace-AR-11-steps.parquet")
    found = diagnose_trace(trace)
    assert found.verdict == "worker"
    assert [(w.rank, w.dp_rank, w.stage) for w in found.workers] == [(0, 0, 0)]
    assert found.workers[0].ratio == pytest.approx(2.35, abs=0.05)
    assert found.slowdown == pytest.approx(1.973, rel=0.02)
    assert found.what_if["worker_share"] == pytest.approx(1.0017, abs=0.002)
    assert found.onset_step is None
    assert trace.world_size == 64


def test_heavy_last_stage_of_a_public_trace() -> None:
    """Trace ST: the last stage, nobody accused, S 1.179 and M_S 1.219 as published."""
    found = diagnose_trace(read_trace(FIXTURES / "trace-ST.parquet"))
    assert (found.verdict, found.workers) == ("stage", [])
    assert found.slowdown == pytest.approx(1.1787, abs=0.0005)
    assert found.what_if["stage_share"] == pytest.approx(1.2194, abs=0.0005)
    assert found.what_if["slow_stage"] == 3


@pytest.mark.parametrize("name", ["trace-AR-11-steps.parquet", "trace-ST.parquet"])
def test_replay_of_a_public_trace_takes_as_long(name: str) -> None:
    """Played as recorded, without gaps, steps take 1 % to 2 % less than they did."""
    trace = read_trace(FIXTURES / name)
    pipeline = Pipeline(trace)
    replayed = pipeline.simulate(pipeline.durations)
    assert np.all(replayed <= trace.step_seconds())
    assert replayed.mean() == pytest.approx(trace.step_seconds().mean(), rel=0.025)


@pytest.mark.parametrize(("dp", "stages"), [(4, 1), (4, 2), (2, 4), (3, 5)])
def test_replay_of_a_made_up_job_is_exact(tmp_path: Path, dp: int, stages: int) -> None:
    """A job without gaps takes in the replay what its own event loop says, to the microsecond."""
    job = PipelineJob(dp=dp, stages=stages, steps=4)
    job.data[:] = 0
    trace = read_trace(job.write(tmp_path / "trace.parquet"))
    pipeline = Pipeline(trace)
    assert np.allclose(pipeline.simulate(pipeline.durations), trace.step_seconds(), atol=1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("last_stage", [1.0, 1.2, 2.0])
@pytest.mark.parametrize("variation", [0.2, 0.5])
def test_unequal_sequences_accuse_nobody(
    tmp_path: Path, seed: int, last_stage: float, variation: float
) -> None:
    """Microbatches of unequal length on 32 x 2 ranks: the sequences, even beside a heavy stage."""
    job = PipelineJob(dp=32, stages=2, microbatches=8, steps=20, seed=seed)
    length = np.exp(job.rng.normal(0, variation, (20, 32, 1, 8)))
    job.forward *= length
    job.backward *= length
    job.forward[:, :, -1] *= last_stage
    job.backward[:, :, -1] *= last_stage
    found = diagnosed(job, tmp_path)
    assert (found.verdict, found.workers) == ("sequence_length", [])


def _worker(job: PipelineJob) -> None:
    job.forward[:, 2, 1] *= 1.5
    job.backward[:, 2, 1] *= 1.5


def _late_worker(job: PipelineJob) -> None:
    job.forward[10:, 2, 1] *= 2
    job.backward[10:, 2, 1] *= 2


def _two_workers(job: PipelineJob) -> None:
    for dp_rank, stage in ((2, 1), (3, 0)):
        job.forward[:, dp_rank, stage] *= 2
        job.backward[:, dp_rank, stage] *= 2


def _stage(job: PipelineJob) -> None:
    job.forward[:, :, 0] *= 2.5


def _collection(job: PipelineJob) -> None:
    for step in range(job.shape[0]):
        for dp_rank in range(job.shape[1]):
            job.forward[step, dp_rank, job.rng.integers(2), job.rng.integers(8)] += 1.0


def _link(job: PipelineJob) -> None:
    job.p2p[:, 1, :] = 0.15


def _data(job: PipelineJob) -> None:
    job.data[:] = 1.0


def _nothing(job: PipelineJob) -> None:
    del job


@pytest.mark.parametrize(
    ("cause", "verdict", "ranks", "onset"),
    [
        (_worker, "worker", {(2, 1)}, None),
        (_late_worker, "worker", {(2, 1)}, 130),
        (_two_workers, "worker", {(2, 1), (3, 0)}, None),
        (_stage, "stage", set(), None),
        (_collection, "gc", set(), None),
        (_link, "link", set(), None),
        (_data, "data_loader", set(), None),
        (_nothing, "none", set(), None),
    ],
)
def test_made_up_causes(
    tmp_path: Path,
    cause: Callable[[PipelineJob], None],
    verdict: str,
    ranks: set[tuple[int, int]],
    onset: int | None,
) -> None:
    """Each cause of a trace is named, ranks only where ranks are guilty."""
    job = PipelineJob()
    cause(job)
    found = diagnosed(job, tmp_path)
    assert found.verdict == verdict
    assert {(w.dp_rank, w.stage) for w in found.workers} == ranks
    assert found.onset_step == onset


def test_one_rank_or_no_stage_peers_is_unknown(tmp_path: Path) -> None:
    """With one rank a stage a slow rank and a heavy stage look the same, and nobody is named."""
    alone = PipelineJob(dp=1, stages=1)
    heavy = PipelineJob(dp=1, stages=2)
    heavy.forward[:, :, 1] *= 2.5
    for job in (alone, heavy):
        found = diagnosed(job, tmp_path)
        assert (found.verdict, found.workers) == ("unknown", [])


def test_interference_between_groups_is_told(tmp_path: Path) -> None:
    """Sends that are slower while parameters are gathered are told as interference."""
    job = PipelineJob(dp=4, stages=2, steps=40)
    columns = job.columns()
    first = (columns["optype"] == "forward-send") & (columns["seq_id"] < 2)
    received = (columns["optype"] == "forward-recv") & (columns["seq_id"] < 2)
    columns["duration"][first | received] += 0.004
    gathered = (columns["optype"] == "params-all-gather") & (columns["stage"] == 0)
    columns["duration"][gathered] = 0.35
    found = diagnose_trace(read_trace(job.write(tmp_path / "trace.parquet", columns)))
    assert any("interference: forward-send of stage 0" in reason for reason in found.reasons)


def test_steps_that_lack_operations_are_left_out(tmp_path: Path) -> None:
    """A step without one of its operations costs that step and is told."""
    job = PipelineJob(steps=12)
    columns = job.columns()
    keep = np.ones(len(columns["step"]), dtype=bool)
    keep[np.argmax(columns["step"] == 106)] = False
    path = job.write(tmp_path / "trace.parquet", {k: v[keep] for k, v in columns.items()})
    trace = read_trace(path)
    assert (len(trace.steps), trace.dropped_steps) == (11, 1)
    assert any("1 steps lack operations" in reason for reason in diagnose_trace(trace).reasons)


def test_large_trace_is_quick(tmp_path: Path) -> None:
    """120,000 operations take less than ten times the second they usually do."""
    job = PipelineJob(dp=32, stages=2, microbatches=8, steps=48)
    started = time.monotonic()
    diagnosed(job, tmp_path)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("duration", float("nan"), "is nan, expected a finite number of seconds"),
        ("start_ts", float("inf"), "is inf, expected a finite number of seconds"),
        ("duration", -0.5, "is -0.5, expected 0 or more"),
        ("start_ts", 4e9, "expected a time that is not in the future"),
        ("rank", -1, "is -1, expected 0 or more"),
    ],
)
def test_values_that_cannot_be(tmp_path: Path, column: str, value: float, message: str) -> None:
    """NaN, negative and future times are refused with column and row."""
    job = PipelineJob(steps=3)
    columns = job.columns()
    columns[column][17] = value
    path = job.write(tmp_path / "trace.parquet", columns)
    with pytest.raises(UsageError, match=f"{column}.17.: .*{message}"):
        read_trace(path)


def test_foreign_and_cut_files(tmp_path: Path) -> None:
    """Cut files, files without rows or columns, doubled and missing operations are refused."""
    job = PipelineJob(steps=3)
    columns = job.columns()
    path = job.write(tmp_path / "trace.parquet")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(path.read_bytes()[:5000])
    empty = job.write(tmp_path / "empty.parquet", {k: v[:0] for k, v in columns.items()})
    lacking = tmp_path / "lacking.parquet"
    pq.write_table(pa.table({"dp_rank": [0], "stage": [0]}), lacking)
    twice = job.write(
        tmp_path / "twice.parquet", {k: np.concatenate([v, v[:1]]) for k, v in columns.items()}
    )
    words = job.write(tmp_path / "words.parquet", columns | {"duration": columns["optype"]})
    null = tmp_path / "null.parquet"
    table = pa.table(columns)
    holes = pa.array([None, *columns["step"][1:].tolist()])
    pq.write_table(table.set_column(table.column_names.index("step"), "step", holes), null)
    for bad, message in (
        (cut, "no whole parquet file"),
        (empty, "holds no rows"),
        (lacking, "lacks the columns"),
        (twice, "stands there twice"),
        (words, "expected numbers"),
        (null, r"step\[0\]: is empty"),
    ):
        with pytest.raises(UsageError, match=message):
            read_trace(bad)
