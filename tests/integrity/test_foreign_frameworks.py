"""Layouts of torch DCP, Hugging Face, Megatron, DeepSpeed, NeMo, Lightning and Orbax."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat

from support.checkpoints import flip
from support.foreign import (
    deepspeed,
    hugging_face,
    megatron,
    named,
    only,
    saved,
    values,
    whole_dcp,
)
from tailwatch.integrity import audit

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep torch's own log of each save out of the output of failures."""
    caplog.set_level("WARNING", logger="c10d-NullHandler-dcp_logger")


def save_dcp(path: Path, **options: Any) -> Path:
    """Save tensors and plain values with the real library."""
    state = {"w": values(1).reshape(16, 16), "opt": {"m": values(2), "k": 3}}
    dcp.save(state, storage_writer=FileSystemWriter(path, **options), no_dist=True)
    return path


@pytest.mark.parametrize(
    "options",
    [{}, {"thread_count": 2}, {"serialization_format": SerializationFormat.SAFETENSORS}],
    ids=["plain", "two files", "safetensors"],
)
def test_what_torch_saves_is_complete(tmp_path: Path, options: dict[str, Any]) -> None:
    """A save of the real library is complete as far as can be seen, in each of its forms."""
    state: dict[str, Any] = {"w": values(1).reshape(16, 16), "m": values(2)}
    dcp.save(state, storage_writer=FileSystemWriter(tmp_path / "step-40", **options), no_dist=True)
    result = audit(tmp_path)
    assert (result.format, result.verdict, result.would_load) == ("dcp", "unverifiable", "step-40")
    assert len(result.candidates[0].reasons) == 1


def test_a_flip_in_a_shard_is_found(tmp_path: Path) -> None:
    """Each item carries the CRC-32 of torch.save, so a flipped byte of a tensor is found."""
    path = save_dcp(tmp_path / "step-40")
    shard = path / "__0_0.distcp"
    offset = shard.read_bytes().index(values(1)[:8].numpy().tobytes())
    flip(shard, offset + 9)
    found = only(path)
    assert found.verdict == "corrupt"
    assert "member archive/data/0 does not match its CRC-32" in found.reasons[0]
    assert "(item w at byte" in found.reasons[0]


def test_no_change_of_metadata_is_valid(tmp_path: Path) -> None:
    """`.metadata` has no checksum: no change of it is ever valid, and none makes a traceback."""
    path = save_dcp(tmp_path / "step-40")
    metadata = path / ".metadata"
    whole = metadata.read_bytes()
    corrupt = 0
    for offset in range(0, len(whole), 3):
        data = bytearray(whole)
        data[offset] ^= 1 << (offset % 8)
        metadata.write_bytes(data)
        verdict = only(path).verdict
        assert verdict in ("corrupt", "incomplete", "unverifiable")
        corrupt += verdict != "unverifiable"
    assert corrupt > len(whole) // 3 * 0.2


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"", "empty"), (bytes(1749), "zeros"), (None, "truncated"), (b"x", "damaged")],
)
def test_bad_metadata(tmp_path: Path, content: bytes | None, word: str) -> None:
    """What a power cut leaves of `.metadata` has its plain word."""
    path = whole_dcp(tmp_path / "step-120")
    whole = (path / ".metadata").read_bytes()
    (path / ".metadata").write_bytes(whole[:500] if content is None else content)
    found = only(path)
    assert found.verdict == "corrupt"
    assert word in found.reasons[0] or (content is None and "damaged" in found.reasons[0])


def test_a_lost_rename(tmp_path: Path) -> None:
    """`.metadata.tmp` instead of `.metadata`: the commit was lost in a power cut."""
    path = whole_dcp(tmp_path / "step-120")
    (path / ".metadata").rename(path / ".metadata.tmp")
    found = only(path)
    assert found.verdict == "incomplete"
    assert ".metadata.tmp was left over" in found.reasons[0]


def test_swapped_shards_of_different_sizes(tmp_path: Path) -> None:
    """Shards in each other's place are seen where their items differ in size."""
    path = save_dcp(tmp_path / "step-40", thread_count=2)
    one, other = path / "__0_0.distcp", path / "__0_1.distcp"
    one.rename(path / "aside")
    other.rename(one)
    (path / "aside").rename(other)
    assert only(path).verdict == "corrupt"


def test_a_place_that_is_not_in_any_file(tmp_path: Path) -> None:
    """When a writer's helper failed unnoticed, `.metadata` lacks the places of its items."""
    path = save_dcp(tmp_path / "step-40")
    metadata = dcp.FileSystemReader(path).read_metadata()
    assert metadata.storage_data is not None
    for index in [index for index in metadata.storage_data if index.fqn == "opt.m"]:
        del metadata.storage_data[index]
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    found = only(path)
    assert found.verdict == "corrupt"
    assert "no place for a piece of opt.m" in found.reasons[0]


def test_left_over_shards_are_doubted(tmp_path: Path) -> None:
    """A shard that `.metadata` does not know is extra and harms nothing."""
    path = whole_dcp(tmp_path / "step-120")
    shutil.copy(path / "__0_0.distcp", path / "__7_0.distcp")
    result = audit(path)
    assert (result.verdict, result.would_load) == ("unverifiable", "step-120")
    assert "__7_0.distcp is extra" in " ".join(result.candidates[0].reasons)


def test_hugging_face_whole(tmp_path: Path) -> None:
    """A Trainer's checkpoints: the newest would be loaded, at any world size."""
    for step in (10, 20):
        hugging_face(tmp_path, step)
    result = audit(tmp_path)
    assert (result.format, result.verdict) == ("hugging_face", "unverifiable")
    assert (result.would_load, result.steps_lost) == ("checkpoint-20", 0)
    assert result.candidates[0].world == "any; random states for 2 processes"


@pytest.mark.parametrize(
    ("file", "verdict", "word"),
    [
        ("trainer_state.json", "incomplete", "trainer writes it last"),
        ("model.safetensors", "incomplete", "its weights are not"),
        ("optimizer.pt", "incomplete", "checkpoints before it have it"),
        ("scheduler.pt", "incomplete", "checkpoints before it have it"),
        ("rng_state_0.pth", "incomplete", "ranks up to 1"),
    ],
)
def test_hugging_face_missing(tmp_path: Path, file: str, verdict: str, word: str) -> None:
    """Each part that a resume needs is missed, and the checkpoint before is taken."""
    hugging_face(tmp_path, 10)
    newest = hugging_face(tmp_path, 20)
    (newest / file).unlink()
    result = audit(tmp_path)
    assert (result.verdict, result.would_load, result.steps_lost) == (verdict, "checkpoint-10", 10)
    text = " ".join(result.candidates[0].reasons)
    assert f"checkpoint-20/{file} is missing" in text
    assert word in text


def test_hugging_face_of_another_step(tmp_path: Path) -> None:
    """A trainer state of another step than the directory's is mixed."""
    directory = hugging_face(tmp_path, 20)
    (directory / "trainer_state.json").write_text('{"global_step": 10}')
    found = only(tmp_path)
    assert found.verdict == "corrupt"
    assert "mixed step: it holds step 10, the directory says 20" in found.reasons[0]
    (directory / "trainer_state.json").write_text('{"global_step": 2')
    assert "truncated" in only(tmp_path).reasons[0]


def test_deepspeed_inside_a_trainer(tmp_path: Path) -> None:
    """A Trainer on DeepSpeed has the ranks' files inside; a missing one is missed there, too."""
    directory = hugging_face(tmp_path, 20)
    inner = deepspeed(directory, 20)
    result = audit(tmp_path)
    assert (result.format, result.verdict) == ("hugging_face", "unverifiable")
    (inner / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink()
    found = only(tmp_path)
    assert found.verdict == "incomplete"
    assert "global_step20/bf16_zero_pp_rank_3" in found.reasons[0]


def test_megatron(tmp_path: Path) -> None:
    """A whole grid of ranks is valid; a rank that is gone is named, and an older one is taken."""
    megatron(tmp_path, 100)
    megatron(tmp_path, 200)
    result = audit(tmp_path)
    assert (result.format, result.verdict, result.would_load) == (
        "megatron",
        "valid",
        "iter_0000200",
    )
    assert result.candidates[0].world == "tp=2, pp=2, any dp"
    shutil.rmtree(tmp_path / "iter_0000200" / "mp_rank_01_001")
    result = audit(tmp_path)
    assert (result.verdict, result.would_load, result.steps_lost) == (
        "incomplete",
        "iter_0000100",
        100,
    )
    assert "mp_rank_01_001 is missing: 3 of 4" in result.candidates[0].reasons[0]


def test_megatron_tracker(tmp_path: Path) -> None:
    """The tracker is the commit: a newer iteration is not taken, a missing one is dangling."""
    megatron(tmp_path, 100)
    megatron(tmp_path, 200, track=False)
    result = audit(tmp_path)
    assert (result.verdict, result.would_load) == ("incomplete", "iter_0000100")
    assert "never committed" in result.candidates[0].reasons[0]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("300\n")
    result = audit(tmp_path)
    assert (result.latest, result.would_load) == ("iter_0000300", "iter_0000200")
    (tmp_path / "iter_0000200").rename(tmp_path / "release")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert audit(tmp_path).verdict == "valid"
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    assert "must be told the step" in " ".join(audit(tmp_path).candidates[0].reasons)


def test_megatron_of_another_iteration(tmp_path: Path) -> None:
    """A rank's file of another iteration is mixed."""
    directory = megatron(tmp_path, 200)
    older = megatron(tmp_path / "other", 100)
    name = "mp_rank_01_000/model_optim_rng.pt"
    shutil.copy(older / name, directory / name)
    found = only(directory)
    assert found.verdict == "corrupt"
    assert f"{name} is of a mixed step: it holds iteration 100" in found.reasons[0]


def torch_dist(directory: Path, step: int = 40) -> Path:
    """Write what Megatron leaves with `--ckpt-format torch_dist`."""
    save_dcp(directory)
    saved(directory / "common.pt", {"iteration": step, "args": None})
    text = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    (directory / "metadata.json").write_text(json.dumps(text))
    return directory


def test_megatron_distributed(tmp_path: Path) -> None:
    """torch_dist loads at any size; without its last file it was never finished."""
    directory = torch_dist(tmp_path / "iter_0000040")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("40")
    result = audit(tmp_path)
    assert (result.format, result.verdict) == ("megatron", "unverifiable")
    assert result.candidates[0].world == "any"
    for name in ("metadata.json", "common.pt", ".metadata"):
        (directory / name).rename(tmp_path / "aside")
        found = named(audit(tmp_path), "iter_0000040")
        assert found.verdict == "incomplete"
        assert f"{name} is missing" in found.reasons[0]
        (tmp_path / "aside").rename(directory / name)


def test_megatron_with_digests(tmp_path: Path) -> None:
    """With `integrity.json` every file has a SHA-256: valid, and a flip of any is found."""
    directory = torch_dist(tmp_path / "iter_0000040")
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in directory.iterdir()}
    (directory / "integrity.json").write_text(json.dumps({"algorithm": "sha256", "files": files}))
    assert only(directory).verdict == "valid"
    text = (directory / ".metadata").read_bytes()
    flip(directory / ".metadata", text.index(b"opt.m") + 4)
    found = only(directory)
    assert found.verdict == "corrupt"
    assert any(".metadata" in reason for reason in found.reasons)


def test_deepspeed(tmp_path: Path) -> None:
    """A whole set of ranks is valid; the last rank is missed by what the others say."""
    deepspeed(tmp_path, 100)
    newest = deepspeed(tmp_path, 200)
    (tmp_path / "zero_to_fp32.py").write_text("# a script")
    result = audit(tmp_path)
    assert (result.format, result.verdict, result.would_load) == (
        "deepspeed",
        "valid",
        "global_step200",
    )
    assert (result.candidates[0].world or "").startswith("dp=4, mp=1")
    (newest / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink()
    result = audit(tmp_path)
    assert (result.verdict, result.would_load, result.steps_lost) == (
        "incomplete",
        "global_step100",
        100,
    )
    assert "zero_pp_rank_3" in result.candidates[0].reasons[0]


def test_deepspeed_of_another_step(tmp_path: Path) -> None:
    """Model states of another step than the directory's are mixed."""
    directory = deepspeed(tmp_path, 200)
    directory.rename(tmp_path / "global_step300")
    (tmp_path / "latest").write_text("global_step300")
    found = only(tmp_path)
    assert found.verdict == "corrupt"
    assert "mixed step: it holds step 200" in found.reasons[0]


def test_nemo_unfinished(tmp_path: Path) -> None:
    """NeMo's marker beside a checkpoint says that its save was cut off."""
    for step in (10, 20):
        directory = tmp_path / f"model--val_loss=0.5-step={step}-consumed_samples=640-last"
        torch_dist(directory / "weights", step)
        (directory / "context").mkdir()
        (directory / "context" / "model.yaml").write_text("a: 1")
    newest = directory.name
    (tmp_path / f"{newest}-unfinished").touch()
    result = audit(tmp_path)
    assert (result.format, result.verdict, result.latest) == ("nemo", "incomplete", newest)
    assert "step=10" in (result.would_load or "")
    assert result.steps_lost == 10
    assert "unfinished" in result.candidates[0].reasons[0]


def bundle(path: Path, weights: bytes | None, mode: str = "w:") -> Path:
    """Write a `.nemo` file."""
    members = {"./model_config.yaml": b"a: 1\n"}
    if weights is not None:
        members["./model_weights.ckpt"] = weights
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_nemo_bundle(tmp_path: Path) -> None:
    """The weights inside a bundle are checked; a cut, a flip and missing weights are told apart."""
    weights = saved(tmp_path / "w.pt", {"w": values(1)}).read_bytes()
    (tmp_path / "w.pt").unlink()
    path = bundle(tmp_path / "model.nemo", weights)
    assert only(path).verdict == "unverifiable"
    whole = path.read_bytes()
    for data, word in (
        (whole[:2500], "truncated"),
        (whole.replace(values(1)[:4].numpy().tobytes(), bytes(16)), "CRC-32"),
        (bytes(len(whole)), "zeros"),
        (b"", "empty"),
    ):
        path.write_bytes(data)
        found = only(path)
        assert found.verdict == "corrupt"
        assert word in found.reasons[0]
    bundle(path, None)
    assert "model_weights.ckpt is missing" in only(path).reasons[0]
    bundle(path, weights, "w:gz")
    assert only(path).verdict == "valid"
    path.write_bytes(path.read_bytes()[:-30])
    assert only(path).verdict == "corrupt"


def test_lightning(tmp_path: Path) -> None:
    """Loose `.ckpt` files are one checkpoint each, in the order of their steps."""
    for step in (900, 1000):
        saved(tmp_path / f"epoch=1-step={step}.ckpt", {"global_step": step, "w": values(step)})
    newest = tmp_path / "epoch=1-step=1000.ckpt"
    os.truncate(newest, newest.stat().st_size // 2)
    result = audit(tmp_path)
    assert (result.verdict, result.latest) == ("corrupt", newest.name)
    assert (result.would_load, result.steps_lost) == ("epoch=1-step=900.ckpt", 100)


def test_orbax_is_not_looked_at(tmp_path: Path) -> None:
    """What nobody here can read is unverifiable, with the reason."""
    step = tmp_path / "100"
    (step / "state").mkdir(parents=True)
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    (step / "state" / "manifest.ocdbt").write_bytes(b"x" * 100)
    (tmp_path / "200.orbax-checkpoint-tmp-17").mkdir()
    (tmp_path / "200.orbax-checkpoint-tmp-17" / "x").write_bytes(b"x")
    result = audit(tmp_path)
    assert (result.format, result.verdict, result.latest) == ("orbax", "unverifiable", "100")
    assert "arrays are not looked at" in " ".join(result.candidates[0].reasons)


def test_ranks_with_the_same_bytes_are_doubted(tmp_path: Path) -> None:
    """A rank's file that was copied over another's is complete, but identical, and doubted."""
    directory = megatron(tmp_path, 100)
    shutil.copy(
        directory / "mp_rank_00_000" / "model_optim_rng.pt",
        directory / "mp_rank_00_001" / "model_optim_rng.pt",
    )
    found = only(tmp_path)
    assert found.verdict == "unverifiable"
    assert "identical" in found.reasons[0]


def test_torch_loads_what_is_called_whole(tmp_path: Path) -> None:
    """The save that is called complete is one that torch loads, and the cut one is not."""
    path = save_dcp(tmp_path / "step-40")
    target = {"w": torch.zeros(16, 16)}
    dcp.load(target, checkpoint_id=path, no_dist=True)
    assert torch.equal(target["w"].flatten(), values(1))
    shard = path / "__0_0.distcp"
    os.truncate(shard, shard.stat().st_size - 3)
    assert only(path).verdict == "corrupt"


def test_lightning_last(tmp_path: Path) -> None:
    """`last.ckpt` has its step inside, and being the same as the newest is no fault of it."""
    newest = saved(tmp_path / "epoch=1-step=1000.ckpt", {"global_step": 1000, "w": values(1)})
    shutil.copy(newest, tmp_path / "last.ckpt")
    result = audit(tmp_path)
    assert [(c.name, c.step, c.verdict) for c in result.candidates] == [
        ("epoch=1-step=1000.ckpt", 1000, "valid"),
        ("last.ckpt", 1000, "valid"),
    ]


def test_metadata_without_shards(tmp_path: Path) -> None:
    """A commit mark without its data is incomplete, also where other doubts are about it."""
    step = tmp_path / "step-10"
    step.mkdir()
    shutil.copy(whole_dcp(tmp_path / "aside" / "step-120") / ".metadata", step)
    result = audit(step)
    assert (result.verdict, result.would_load) == ("incomplete", None)
    assert len([r for r in result.candidates[0].reasons if "is missing" in r]) == 4


def test_parts_of_one_checkpoint(tmp_path: Path) -> None:
    """`model/` and `optim/` in the directory of a step are one checkpoint, from either end."""
    step = tmp_path / "step-120"
    for part in ("model", "optim"):
        whole_dcp(step / part)
    for path in (tmp_path, step):
        result = audit(path)
        assert (result.latest, result.verdict) == ("step-120", "unverifiable")
    (step / "optim" / "__1_0.distcp").unlink()
    assert audit(step).verdict == audit(tmp_path).verdict == "incomplete"


@pytest.mark.parametrize("names", [["README.md"], ["graph.index", "graph.data-00000-of-00001"]])
def test_what_is_no_checkpoint(tmp_path: Path, names: list[str]) -> None:
    """Files that say nothing are never valid and never what a restart would load."""
    for name in names:
        (tmp_path / name).write_text("hello")
    result = audit(tmp_path)
    assert (result.format, result.verdict, result.would_load) == ("unknown", "unverifiable", None)
    assert result.candidates[0].reasons


def test_pointer_files_instead_of_shards(tmp_path: Path) -> None:
    """A clone without git-lfs leaves small texts, which is said of shards of each format."""
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"
    step = whole_dcp(tmp_path / "step-120")
    (step / "__3_0.distcp").write_text(text)
    hugging_face(tmp_path / "hf", 5, shards=2)
    (tmp_path / "hf" / "checkpoint-5" / "optimizer.pt").write_text(text)
    for path in (step, tmp_path / "hf"):
        found = only(path)
        assert found.verdict == "incomplete"
        assert "is a git-lfs pointer" in found.reasons[0]


def test_a_number_that_is_no_step(tmp_path: Path) -> None:
    """The number of a run is not taken for a step, neither above its checkpoints nor beside."""
    run = tmp_path / "runs" / "run_3"
    for step in (10, 20):
        hugging_face(run / "ckpt", step)
    result = audit(run)
    assert (result.latest, result.verdict) == ("checkpoint-20", "unverifiable")
    final = hugging_face(tmp_path, 500).rename(tmp_path / "out_2")
    result = audit(final)
    assert (result.candidates[0].step, result.verdict) == (500, "unverifiable")
    hugging_face(tmp_path / "runs" / "run_4", 30)
    (tmp_path / "runs" / "run_3" / "ckpt" / "checkpoint-10").rename(run / "checkpoint-10")
    assert audit(tmp_path / "runs").would_load is None
