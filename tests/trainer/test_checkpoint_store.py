"""The checkpoint store on one rank: events, order, retention, refusals, and errors of the disk."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as stock_load
from torch.distributed.checkpoint.state_dict_saver import save as stock_save

from support.checkpoints import (
    Events,
    blank,
    equal,
    flip,
    new_run,
    save_steps,
    state,
)
from tailwatch.integrity import BLOCK_BYTES, FileEntry, Policy, block_digest, read_manifest, verify
from tailwatch.records import MAX_RECORD_BYTES, Event, encode
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import (
    CheckpointError,
    CheckpointStore,
    NothingToRestore,
    SaveError,
)
from tailwatch.trainer.checkpoint.reader import CheckedReader
from tailwatch.trainer.checkpoint.writer import HashingFile, SealingWriter


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A fresh run directory."""
    return new_run(tmp_path / "run-a")


def names(run: RunDirectory) -> list[str]:
    """Return what lies in the run's `checkpoints/`."""
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_a_save_is_written_committed_and_verified_in_this_order(run: RunDirectory) -> None:
    """Each stage is an event, and what is on the disk is valid and bound to run and step."""
    events = Events()
    store = CheckpointStore(run, emit=events)
    store.save(state(7), step=7, iteration=3, attempt=2, extra={"note": [1, 2]})
    assert [(kind, step) for kind, step, _ in events.seen] == [
        ("checkpoint_written", 7),
        ("checkpoint_committed", 7),
        ("checkpoint_verified", 7),
    ]
    manifest = read_manifest(run.checkpoints / "step-00000007")
    assert (manifest.run, manifest.step, manifest.iteration) == ("run-a", 7, 3)
    assert (manifest.attempt, manifest.world_size, manifest.extra) == (2, 1, {"note": [1, 2]})
    assert manifest.tensors == {name: list(value.shape) for name, value in state(7).items()}
    assert events.of("checkpoint_verified")[0]["bytes"] == manifest.total_bytes
    assert names(run) == ["step-00000007"]


def test_a_load_restores_in_place_what_was_saved(run: RunDirectory) -> None:
    """The newest step comes back to the last bit, into the tensors that were given."""
    save_steps(run, [3, 5])
    events = Events()
    target = blank(state(5))
    before = dict(target)
    restored = CheckpointStore(run, emit=events).load(target)
    assert restored is not None
    assert (restored.step, restored.iteration, restored.refused) == (5, 2, [])
    assert equal(target, state(5))
    assert all(target[name] is before[name] for name in before)
    detail = events.of("restore")[0]
    assert (detail["step"], detail["checkpoint"], detail["verified"]) == (5, "step-00000005", True)


def test_stock_torch_reads_the_directory(run: RunDirectory) -> None:
    """The files are torch DCP's own: stock `dcp.load` gives the same values."""
    save_steps(run, [5])
    target = blank(state(5))
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        stock_load(target, checkpoint_id=run.checkpoints / "step-00000005")
    assert equal(target, state(5))


def test_a_committed_step_is_never_written_again(run: RunDirectory) -> None:
    """Saving a step that is there and valid changes no byte; an invalid one is set aside first."""
    save_steps(run, [5])
    before = (run.checkpoints / "step-00000005" / "MANIFEST.json").read_bytes()
    events = Events()
    store = CheckpointStore(run, emit=events)
    store.save(state(9), step=5, iteration=2, attempt=2, extra={})
    assert events.seen == []
    assert (run.checkpoints / "step-00000005" / "MANIFEST.json").read_bytes() == before
    flip(run.checkpoints / "step-00000005" / "__0_0.distcp", 1000)
    store.save(state(5), step=5, iteration=2, attempt=2, extra={})
    assert names(run) == ["step-00000005", "step-00000005.bad-changed"]
    assert verify(run.checkpoints / "step-00000005").verdict == "valid"


def test_leftovers_go_and_only_the_newest_stay(run: RunDirectory) -> None:
    """What an older attempt left half-written is removed, and `keep` checkpoints remain."""
    (run.checkpoints / "step-00000002.tmp-a0001").mkdir()
    store = CheckpointStore(run, policy=Policy(keep_last=2), emit=Events())
    for step in (1, 2, 3, 4):
        store.save(state(step), step=step, iteration=0, attempt=2, extra={})
    assert names(run) == ["step-00000003", "step-00000004"]


def test_a_damaged_newest_is_refused_and_the_one_before_is_used(run: RunDirectory) -> None:
    """The refusal names file, block and fault, says what is lost, and fits a ring record."""
    save_steps(run, [3, 5, 9])
    shutil.copy(
        run.checkpoints / "step-00000005" / "__0_0.distcp", run.checkpoints / "step-00000009"
    )
    (run.checkpoints / "step-00000005" / ".metadata").unlink()
    events = Events()
    target = blank(state(3))
    restored = CheckpointStore(run, emit=events).load(target)
    assert restored is not None
    assert restored.step == 3
    assert equal(target, state(3))
    first, second = events.of("checkpoint_refused")
    assert (first["checkpoint"], first["step"], first["file"]) == (
        "step-00000009",
        9,
        "__0_0.distcp",
    )
    assert (first["block"], first["fault"], first["steps_lost"]) == (0, "changed", 6)
    assert first["quarantined_as"] == "step-00000009.bad-changed"
    assert (second["file"], second["fault"], second["steps_lost"]) == (".metadata", "missing", 2)
    assert [kind for kind, _, _ in events.seen][-1] == "restore"
    assert names(run) == ["step-00000003", "step-00000005.bad-missing", "step-00000009.bad-changed"]
    event = Event(
        run="r" * 40,
        attempt=1,
        time_ns=1,
        kind="checkpoint_refused",
        source="rank0",
        detail=first,
    )
    assert len(encode(event)) < MAX_RECORD_BYTES


def test_a_flip_undone_before_the_load_quarantines_nothing(run: RunDirectory) -> None:
    """A byte flipped and flipped back leaves a valid checkpoint that is loaded."""
    save_steps(run, [3, 5])
    path = run.checkpoints / "step-00000005" / "__0_0.distcp"
    manifest = read_manifest(path.parent)
    flip(path, 1234, 5)
    assert block_digest(path, 0) != manifest.files[path.name].digests[0]
    flip(path, 1234, 5)
    events = Events()
    restored = CheckpointStore(run, emit=events).load(blank(state(5)))
    assert restored is not None
    assert restored.step == 5
    assert events.of("checkpoint_refused") == []
    assert names(run) == ["step-00000003", "step-00000005"]


def test_a_run_without_any_checkpoint_starts_from_nothing(run: RunDirectory) -> None:
    """No commit ever: None, and the state is as it was; an uncommitted left-over is no commit."""
    (run.checkpoints / "step-00000002.tmp-a0001").mkdir()
    target = state(1)
    assert CheckpointStore(run, emit=Events()).load(target) is None
    assert equal(target, state(1))


def test_a_run_that_committed_never_starts_from_nothing_by_itself(run: RunDirectory) -> None:
    """Nothing valid left is an error, again and again, until somebody asks for a fresh start."""
    save_steps(run, [3])
    (run.checkpoints / "step-00000003" / "__0_0.distcp").write_bytes(b"")
    events = Events()
    store = CheckpointStore(run, emit=events)
    target = state(1)
    with pytest.raises(NothingToRestore, match="1 refused now"):
        store.load(target)
    assert events.of("checkpoint_refused")[0]["steps_lost"] is None
    with pytest.raises(NothingToRestore, match="0 refused now"):
        store.load(target)
    assert equal(target, state(1))
    assert store.load(target, from_scratch=True) is None


def test_that_a_run_committed_outlives_its_checkpoints(run: RunDirectory) -> None:
    """A run whose checkpoints were all deleted is known to have committed, by a file of its own."""
    store = CheckpointStore(run, emit=Events())
    store.save(state(3), step=3, iteration=1, attempt=1, extra={})
    shutil.rmtree(run.checkpoints)
    run.checkpoints.mkdir()
    with pytest.raises(NothingToRestore):
        store.load(state(1))


def test_a_run_whose_mark_is_lost_gets_it_back(run: RunDirectory) -> None:
    """A load that sees a committed checkpoint remembers it, so that it may be deleted later."""
    save_steps(run, [3])
    run.committed.unlink()
    store = CheckpointStore(run, emit=Events())
    store.load(state(1))
    shutil.rmtree(run.checkpoints / "step-00000003")
    with pytest.raises(NothingToRestore):
        store.load(state(1))


def test_a_checkpoint_that_does_not_fit_is_an_error_not_a_fault(run: RunDirectory) -> None:
    """Another shape or an unknown tensor stops the load; nothing is loaded or quarantined."""
    save_steps(run, [3])
    store = CheckpointStore(run, emit=Events())
    target = state(1)
    target["model.embed"] = torch.zeros(9, 16)
    with pytest.raises(CheckpointError, match=r"shape \[8, 16\], expected \[9, 16\]"):
        store.load(target)
    target = state(1) | {"model.new": torch.zeros(2)}
    with pytest.raises(CheckpointError, match=r"it has no model\.new"):
        store.load(target)
    assert equal(target, state(1) | {"model.new": torch.zeros(2)})
    assert names(run) == ["step-00000003"]


def test_state_that_is_no_tensor_is_refused(run: RunDirectory) -> None:
    """A number in the state is refused at the save; the trainer's own state goes into `extra`."""
    store = CheckpointStore(run, emit=Events())
    with pytest.raises(SaveError, match="is not a tensor"):
        store.save({"step": 5}, step=5, iteration=0, attempt=1, extra={})  # type: ignore[dict-item]
    assert names(run) == []


def test_a_lost_result_fails_the_save(tmp_path: Path) -> None:
    """A tensor that was planned and not written fails the save instead of the load."""
    directory = tmp_path / "d"
    sealed: list[dict[str, FileEntry]] = []
    writer = SealingWriter(directory, lambda save_id, files, tensors: sealed.append(files))
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        metadata = stock_save(state(1), storage_writer=writer, no_dist=True)
    assert set(sealed[0]) == {"__0_0.distcp", ".metadata"}
    with pytest.raises(RuntimeError, match=f"0 of {len(state(1))} planned tensors"):
        writer.finish(metadata, [[]])


def test_large_tensors_span_blocks_and_the_block_is_named(run: RunDirectory) -> None:
    """In a file of several blocks the damaged one is named, and the others are read as they are."""
    torch.manual_seed(1)
    big = {"w": torch.randn(3 * BLOCK_BYTES // 4 + 1000), "v": torch.randn(10)}
    store = CheckpointStore(run, emit=Events())
    store.save(big, step=1, iteration=0, attempt=1, extra={})
    target = blank(big)
    store.load(target)
    assert equal(target, big)
    store.save(big, step=2, iteration=0, attempt=1, extra={})
    flip(run.checkpoints / "step-00000002" / "__0_0.distcp", 2 * BLOCK_BYTES + 17)
    events = Events()
    CheckpointStore(run, emit=events).load(target)
    refused = events.of("checkpoint_refused")[0]
    assert (refused["file"], refused["block"], refused["fault"]) == ("__0_0.distcp", 2, "changed")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_byte_that_changes_after_the_verdict_never_reaches_the_tensors(
    run: RunDirectory,
) -> None:
    """The reader compares every block again as it reads it, `.metadata` before it is unpickled."""
    save_steps(run, [5])
    path = run.checkpoints / "step-00000005"
    manifest = read_manifest(path)
    for name in ("__0_0.distcp", ".metadata"):
        flip(path / name, 100)
        with pytest.raises(BaseException, match="changed after it had been verified"):
            stock_load(blank(state(5)), storage_reader=CheckedReader(path, manifest), no_dist=True)
        flip(path / name, 100)
    target = blank(state(5))
    stock_load(target, storage_reader=FileSystemReader(path), no_dist=True)
    assert equal(target, state(5))


@pytest.mark.parametrize("sizes", [[0], [1], [BLOCK_BYTES - 1, 1, 5], [3, 2 * BLOCK_BYTES + 7, 9]])
def test_digests_while_writing_equal_digests_of_the_file(tmp_path: Path, sizes: list[int]) -> None:
    """However the bytes come, the digests are those of the file's blocks, and so are the bytes."""
    data = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    with HashingFile(tmp_path / "file") as file:
        for part in data:
            file.write(part)
        assert file.tell() == sum(sizes)
    assert (tmp_path / "file").read_bytes() == b"".join(data)
    assert file.entry.size == sum(sizes)
    assert file.entry.digests == [
        block_digest(tmp_path / "file", block) for block in range(len(file.entry.digests))
    ]


def _save_with_little_room(run: RunDirectory, limit: int, pipe: Connection) -> None:
    torch.set_num_threads(1)  # The parent's threads are not there after a fork.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    store = CheckpointStore(run, emit=Events())
    big = state(5) | {"w": torch.zeros(3 * BLOCK_BYTES // 4)}
    try:
        store.save(big, step=5, iteration=2, attempt=1, extra={})
    except SaveError as error:
        pipe.send(str(error))
    else:
        pipe.send("saved")


@pytest.mark.parametrize("limit", [1000, BLOCK_BYTES + 5000])
def test_a_write_that_fails_leaves_the_step_before(run: RunDirectory, limit: int) -> None:
    """A file that cannot grow fails the save in plain words; the step before stays and loads."""
    save_steps(run, [3])
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_save_with_little_room, args=(run, limit, theirs))
    process.start()
    assert mine.poll(30)
    message = mine.recv()
    process.join()
    assert "File too large" in message
    assert "MB and" in message
    assert names(run) == ["step-00000003"]
    restored = CheckpointStore(run, emit=Events()).load(blank(state(3)))
    assert restored is not None
    assert restored.step == 3
