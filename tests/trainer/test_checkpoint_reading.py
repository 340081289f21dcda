"""Reading saved tensors: what `torch.load` would give, from a closed list of names."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
from pathlib import Path

import pytest
import torch
import torch._dynamo  # DTensor wants it at first use: imported once, not by each forked rank
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from support.checkpoints import Events, new_run, on_ranks, tensor
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint import CheckpointStore
from tailwatch.trainer.checkpoint.pickles import load_metadata, load_tensor_head
from tailwatch.trainer.checkpoint.saved_tensor import SavedTensor

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64,
    torch.uint8, torch.bool, torch.complex64, torch.uint16,
]  # fmt: skip


def saved(value: torch.Tensor, lead: int = 0) -> SavedTensor:
    """Return a tensor after a way through `torch.save`, behind some other bytes of the file."""
    file = io.BytesIO()
    file.write(b"x" * lead)
    start = io.BytesIO()
    torch.save(value, start)
    file.write(start.getvalue())
    return SavedTensor(file, lead, len(start.getvalue()))


@st.composite
def parts(draw: st.DrawFn) -> tuple[torch.Tensor, list[int], list[int], bool]:
    """Draw a tensor, a part of it, and whether the target's elements lie in order."""
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    raw = torch.randint(0, 2, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    value = raw.view(dtype).reshape(shape)
    if draw(st.booleans()) and len(shape) >= 2:
        value = value.transpose(0, 1)
    offsets = [draw(st.integers(0, size)) for size in value.shape]
    lengths = [
        draw(st.integers(0, size - at)) for size, at in zip(value.shape, offsets, strict=True)
    ]
    return value, offsets, lengths, draw(st.booleans())


@settings(max_examples=300, deadline=None)
@given(parts(), st.integers(0, 100))
def test_any_part_of_any_tensor_is_read_as_torch_would(
    case: tuple[torch.Tensor, list[int], list[int], bool], lead: int
) -> None:
    """Whatever dtype, shape, order and part: the bytes of the original, and no others."""
    value, offsets, lengths, in_order = case
    expected = value
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        expected = expected.narrow(dimension, offset, length)
    target = torch.zeros(lengths if in_order else lengths[::-1], dtype=value.dtype)
    if not in_order and lengths:
        target = target.permute(*reversed(range(len(lengths))))
    saved(value, lead).copy_to(target, offsets, lengths)
    assert target.shape == expected.shape
    assert target.contiguous().view(-1).view(torch.uint8).tolist() == (
        expected.contiguous().view(-1).view(torch.uint8).tolist()
    )


def test_a_target_of_another_type_is_converted() -> None:
    """As `copy_` does it, and a parameter is read as the tensor that it is."""
    target = torch.zeros(3, dtype=torch.float64)
    saved(torch.nn.Parameter(torch.tensor([1.5, 2.5, 3.5]))).copy_to(target, [0], [3])
    assert target.tolist() == [1.5, 2.5, 3.5]
    with pytest.raises(ValueError, match="part of shape"):
        saved(torch.zeros(3)).copy_to(torch.zeros(2), [0], [3])


class Touch:
    """Unpickled by anything that lets names in, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_no_name_of_others_is_unpickled(tmp_path: Path) -> None:
    """A pickle that names something else is refused before that is imported, let alone called."""
    evil = pickle.dumps(Touch(tmp_path / "touched"))
    with pytest.raises(pickle.UnpicklingError, match=r"names posix\.mkdir"):
        load_metadata(io.BytesIO(evil))
    with pytest.raises(pickle.UnpicklingError, match=r"names posix\.mkdir"):
        load_tensor_head(evil)
    assert not (tmp_path / "touched").exists()
    for harmless in (pathlib.PurePosixPath("x"), torch.float32, [1]):
        with pytest.raises(pickle.UnpicklingError):
            load_metadata(io.BytesIO(pickle.dumps(harmless)))


def test_a_storage_that_is_too_short_is_refused() -> None:
    """A head that promises more elements than its storage holds reads nothing beside it."""
    value = saved(torch.arange(6.0))
    value._bytes -= 4
    with pytest.raises(ValueError, match="longer than its storage"):
        value.copy_to(torch.zeros(6), [0], [6])


PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate(), "odd": Shard(0)}
NAMES = {"rows": (8, 6), "columns": (6, 8), "whole": (5,), "odd": (7, 3)}


def sharded(step: int, world_size: int) -> dict[str, DTensor]:
    """Return tensors of tensor parallelism: by rows, by columns, unevenly, and replicated."""
    mesh = init_device_mesh("cpu", (world_size,))
    found = {}
    for name, shape in NAMES.items():
        whole = tensor(name, step, shape)
        placement = PLACEMENTS[name]
        local = whole
        if isinstance(placement, Shard):
            parts = whole.chunk(world_size, placement.dim)
            local = parts[dist.get_rank()].contiguous()
        found[name] = DTensor.from_local(
            local, mesh, [placement], shape=whole.shape, stride=whole.stride(), run_check=False
        )
    return found


def _save_sharded(rank: int, world_size: int, root: Path, step: int) -> None:
    store = CheckpointStore(RunDirectory(root), emit=Events(), mesh={"tp": world_size})
    store.save(dict(sharded(step, world_size)), step=step, iteration=0, attempt=1, extra={})


def _load_sharded(rank: int, world_size: int, root: Path) -> int:
    target = sharded(0, world_size)
    for value in target.values():
        value.to_local().fill_(torch.nan)
    found = CheckpointStore(RunDirectory(root), emit=Events()).load(dict(target))
    assert found is not None
    for name, expected in sharded(found.step, world_size).items():
        assert torch.equal(target[name].to_local(), expected.to_local()), name
    dist.barrier()
    return found.step


def test_tensor_parallel_state_loads_at_any_size(tmp_path: Path) -> None:
    """Saved by 4, 2 and 1 ranks, by rows, columns and unevenly: the same values on 4, 2 and 1."""
    run = new_run(tmp_path / "run-a")
    for step, saved_by in ((10, 4), (20, 2), (30, 1)):
        assert on_ranks(saved_by, _save_sharded, run.root, step) == [None] * saved_by
        for loaded_by in (4, 2, 1):
            assert on_ranks(loaded_by, _load_sharded, run.root) == [step] * loaded_by
