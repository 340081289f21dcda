"""Broken checkpoints from real bug reports: what must be said of each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.foreign import FIXTURES, fixture, named, only, saved, values, whole_dcp
from tailwatch.integrity import EXIT_CODES, audit

DAY = 86_400.0


def test_one_flipped_bit(tmp_path: Path) -> None:
    """The file and the member with the flipped bit are named; the good file is valid."""
    good = only(FIXTURES / "one-bit" / "good.pt")
    assert (good.verdict, good.reasons) == ("valid", [])
    result = audit(FIXTURES / "one-bit" / "bitflip.pt")
    assert (result.verdict, result.would_load, EXIT_CODES[result.verdict]) == ("corrupt", None, 1)
    assert "bitflip.pt is changed: member good/data/1" in result.candidates[0].reasons[0]
    both = only(FIXTURES / "one-bit")
    assert both.verdict == "corrupt"
    assert [(f.name, f.faults) for f in both.files] == [
        ("bitflip.pt", ["changed"]),
        ("good.pt", []),
    ]


@pytest.mark.parametrize(
    ("name", "verdict", "file", "word"),
    [
        ("nometa", "incomplete", ".metadata", "missing"),
        ("noshard", "incomplete", "__2_0.distcp", "missing"),
        ("zeroshard", "corrupt", "__2_0.distcp", "empty"),
        ("trunc10", "corrupt", "__2_0.distcp", "truncated"),
    ],
)
def test_broken_distributed_checkpoints(name: str, verdict: str, file: str, word: str) -> None:
    """Each is told from the others, by file and plain word, and none would be loaded."""
    for path in (FIXTURES / "dcp-broken" / name, FIXTURES / "dcp-broken" / name / "step-120"):
        result = audit(path)
        assert (result.format, result.verdict, result.would_load) == ("dcp", verdict, None)
        assert (result.latest, result.candidates[0].step) == ("step-120", 120)
        reasons = result.candidates[0].reasons
        assert reasons[0].startswith(f"step-120/{file} is {word}")
        assert len(reasons) == 1


def test_a_whole_distributed_checkpoint(tmp_path: Path) -> None:
    """Shards of different sizes are no fault: complete as far as can be seen, would be loaded."""
    whole_dcp(tmp_path / "step-120")
    result = audit(tmp_path)
    assert (result.verdict, result.would_load, result.steps_lost) == (
        "unverifiable",
        "step-120",
        0,
    )
    assert result.candidates[0].world == "any"
    assert result.candidates[0].reasons == [
        "step-120 is complete as far as can be seen, but there is no checksum to check .metadata"
        " against"
    ]


def test_latest_before_the_shards(tmp_path: Path) -> None:
    """`latest` points to a step that was never finished, and nothing else is left to load."""
    for path in (FIXTURES / "latest-before-durable", FIXTURES / "latest-before-durable" / "ckpt"):
        result = audit(path)
        assert (result.verdict, result.latest, result.would_load) == (
            "incomplete",
            "step_120",
            None,
        )
        text = " ".join(result.candidates[0].reasons)
        assert ".metadata is missing" in text
        assert "__1_0.distcp is truncated" in text
        assert "__2_0.distcp is empty" in text


def test_latest_before_the_shards_with_one_left(tmp_path: Path) -> None:
    """With an older whole step beside it, that one would be loaded, and the loss is stated."""
    ckpt = fixture("latest-before-durable/ckpt", tmp_path)
    whole_dcp(ckpt / "step_110")
    result = audit(ckpt)
    assert (result.verdict, result.would_load, result.steps_lost) == ("incomplete", "step_110", 10)


def test_latest_to_a_missing_step(tmp_path: Path) -> None:
    """A dangling `latest` names both numbers, and falls back only to what verifies."""
    result = audit(FIXTURES / "latest-to-missing" / "deepspeed")
    assert (result.verdict, result.latest, result.would_load) == (
        "incomplete",
        "global_step6500",
        None,
    )
    assert "dangling" in result.candidates[0].reasons[0]
    assert "global_step6000" in result.candidates[0].reasons[0]
    assert named(result, "global_step6000").verdict == "corrupt"
    copy = fixture("latest-to-missing/deepspeed", tmp_path)
    saved(copy / "global_step5500" / "mp_rank_00_model_states.pt", {"global_steps": 5500})
    result = audit(copy)
    assert (result.would_load, result.steps_lost) == ("global_step5500", 1000)


def test_a_pointer_of_another_layout() -> None:
    """Megatron's tracker beside DeepSpeed's directories is a layout mismatch."""
    result = audit(FIXTURES / "latest-to-missing" / "megatron")
    assert (result.format, result.verdict) == ("deepspeed", "incomplete")
    reason = result.candidates[0].reasons[0]
    assert "latest_checkpointed_iteration.txt is dangling" in reason
    assert "layout mismatch: global_step6000 is here" in reason


@pytest.mark.parametrize(
    ("text", "verdict", "word"),
    [
        ("global_step6000", "valid", ""),
        ("global_step6000\n", "valid", ""),
        ("  global_step6000\0\0", "valid", ""),
        ("/other/cluster/run/global_step6000", "valid", ""),
        ("/other/cluster/run/global_step7000", "incomplete", "dangling"),
        ("release", "incomplete", "dangling"),
        ("", "unverifiable", "empty"),
        ("\0" * 15, "unverifiable", "zeros"),
        ("../../etc/passwd", "incomplete", "dangling"),
    ],
)
def test_what_a_pointer_may_hold(tmp_path: Path, text: str, verdict: str, word: str) -> None:
    """White space and paths of other machines are understood, emptiness and nonsense are named."""
    saved(tmp_path / "global_step6000" / "mp_rank_00_model_states.pt", {"global_steps": 6000})
    (tmp_path / "latest").write_text(text)
    result = audit(tmp_path)
    assert (result.verdict, result.would_load) == (verdict, "global_step6000")
    assert word in " ".join(result.candidates[0].reasons)


def stale(root: Path) -> Path:
    """Copy the overwritten step 120 with the times that its directory had."""
    step = fixture("stale-marker/step_120", root)
    for path in step.iterdir():
        late = path.name in ("__1_0.distcp", "__2_0.distcp")
        day = 2 * DAY if late else DAY
        os.utime(path, (day, day))
    return step


def test_markers_of_an_earlier_save(tmp_path: Path) -> None:
    """All markers are there, and two shards are a day younger than theirs: stale."""
    stale(tmp_path)
    result = audit(tmp_path)
    assert (result.verdict, result.would_load) == ("corrupt", None)
    text = "\n".join(result.candidates[0].reasons)
    for file in ("__1_0.distcp", "__2_0.distcp"):
        assert f"step_120/{file} is newer than" in text
    assert "stale" in text
    assert "__0_0.distcp" not in text


def test_a_shard_of_another_step_is_seen_without_times(tmp_path: Path) -> None:
    """The item `step` in a shard contradicts the directory and the path of the save: mixed."""
    step = fixture("stale-marker/step_120", tmp_path)
    for path in step.iterdir():
        os.utime(path, (DAY, DAY))
    found = only(tmp_path)
    assert found.verdict == "corrupt"
    assert "__1_0.distcp is of a mixed step: it holds 110" in found.reasons[0]


def test_a_rank_that_never_confirmed(tmp_path: Path) -> None:
    """All shards are there, one rank's marker is not: incomplete, and the rank is named."""
    step = whole_dcp(tmp_path / "step_120")
    for rank in (0, 1, 3):
        (step / f".rank_{rank}_complete").touch()
    found = only(tmp_path)
    assert found.verdict == "incomplete"
    assert ".rank_2_complete is missing" in found.reasons[0]
    (step / ".rank_2_complete").touch()
    assert only(tmp_path).verdict == "unverifiable"


def test_left_overs_of_a_rename(tmp_path: Path) -> None:
    """What is called tmp is never a candidate, however whole it is; the last real one is."""
    result = audit(FIXTURES / "rename-race" / "out")
    assert (result.latest, result.would_load) == ("checkpoint-48", "checkpoint-48")
    assert result.verdict == named(result, "checkpoint-48").verdict == "unverifiable"
    left = named(result, "tmp-checkpoint-49")
    assert (left.verdict, left.state) == ("incomplete", "temporary")
    assert "unfinished rename" in left.reasons[0]
    assert "complete in content" in left.reasons[0]
    assert "empty" in " ".join(named(result, "tmp-checkpoint-12").reasons)


def test_left_overs_alone(tmp_path: Path) -> None:
    """When nothing but left-overs is there, nothing would be loaded."""
    out = fixture("rename-race/out", tmp_path)
    shutil.rmtree(out / "checkpoint-48")
    result = audit(out)
    assert (result.verdict, result.latest, result.would_load) == ("incomplete", None, None)


def test_killed_during_a_save(tmp_path: Path) -> None:
    """17 of 32 shards and no `.metadata`: the step before is resumed, 100 steps are lost."""
    whole_dcp(tmp_path / "moe-100steps")
    whole_dcp(tmp_path / "moe-200steps")
    killed = tmp_path / "moe-300steps"
    killed.mkdir()
    for rank in (0, 3):
        shutil.copy(tmp_path / "moe-200steps" / f"__{rank}_0.distcp", killed)
    result = audit(tmp_path)
    assert (result.verdict, result.latest) == ("incomplete", "moe-300steps")
    assert (result.would_load, result.steps_lost) == ("moe-200steps", 100)
    text = " ".join(result.candidates[0].reasons)
    assert ".metadata is missing" in text
    assert "2 shards, moe-200steps has 4" in text


def test_steps_are_numbers(tmp_path: Path) -> None:
    """1000 comes after 300, whatever the letters say."""
    for step in (100, 300, 1000):
        whole_dcp(tmp_path / f"moe-{step}steps")
    result = audit(tmp_path)
    assert [c.step for c in result.candidates] == [1000, 300, 100]
    assert result.would_load == "moe-1000steps"


def test_identical_steps_are_doubted(tmp_path: Path) -> None:
    """A step that holds the bytes of the one before says so."""
    for step, seed in ((10, 1), (20, 2), (30, 2)):
        saved(tmp_path / f"step-{step}" / "model.pt", {"w": values(seed)})
    result = audit(tmp_path)
    assert result.verdict == "unverifiable"
    assert "identical to step-20" in result.candidates[0].reasons[0]
    assert [c.verdict for c in result.candidates[1:]] == ["valid", "valid"]


def test_a_shard_newer_than_metadata_is_doubted(tmp_path: Path) -> None:
    """Without markers an old `.metadata` is only doubted: copies of shards look the same."""
    step = whole_dcp(tmp_path / "step_120")
    os.utime(step / ".metadata", (DAY, DAY))
    result = audit(tmp_path)
    assert (result.verdict, result.would_load) == ("unverifiable", "step_120")
    assert "is newer than .metadata" in result.candidates[0].reasons[0]
