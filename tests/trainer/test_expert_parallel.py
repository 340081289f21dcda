"""The expert-parallel model against the plain one, on real gloo ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from tailwatch.trainer.config import TrainerConfig
from tailwatch.trainer.ep import GlooExchange, LocalExchange
from tailwatch.trainer.ep.exchange import ExpertExchange, expert_order
from tailwatch.trainer.state import build_model

CONFIG = TrainerConfig(d_model=32, d_expert=32, experts=8, heads=2)


class _NoClock:
    def begin(self, code: Any, argument: int = 0) -> int:
        return 0

    def end_child(self, name: str, code: Any, started_ns: int, argument: int = 0) -> int:
        return 0

    def add_wait(self, group: str, waited_ns: int) -> None:
        return


def _tokens(rank: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 10, (rows, 9), generator=generator)


def _gradients(owned: range, tokens: Tensor, exchange: ExpertExchange) -> dict[str, Tensor]:
    model = build_model(CONFIG, owned)
    logits = model(tokens, exchange)
    (logits.square().sum() if len(tokens) else logits.sum()).backward()
    found = {"logits": logits.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad
    return found


def _rank(rank: int, world: int, rows: list[int], directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=world
    )
    per_rank = CONFIG.experts // world
    owned = range(rank * per_rank, (rank + 1) * per_rank)
    found = _gradients(owned, _tokens(rank, rows[rank]), GlooExchange(_NoClock()))
    for name, grad in found.items():
        if name != "logits" and ".experts." not in name:
            dist.all_reduce(grad)
    torch.save(found, f"{directory}/rank{rank}.pt")
    dist.barrier()
    os._exit(0)


@pytest.mark.parametrize("rows", [[4, 4], [7, 1], [5, 0], [3, 2, 4, 1]], ids=str)
def test_expert_parallel_equals_the_dense_model(rows: list[int], tmp_path: Path) -> None:
    """Outputs and all gradients of expert parallel ranks are those of one dense model."""
    world = len(rows)
    context = mp.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(rank, world, rows, str(tmp_path)))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    found = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(world)]
    every = torch.cat([_tokens(rank, count) for rank, count in enumerate(rows)])
    dense = _gradients(range(CONFIG.experts), every, LocalExchange())

    torch.testing.assert_close(
        torch.cat([part["logits"] for part in found]), dense["logits"], rtol=1e-5, atol=1e-6
    )
    compared = 0
    for name, expected in dense.items():
        for part in found:
            if name in part and name != "logits":
                compared += 1
                scale = float(expected.norm())
                assert float((part[name] - expected).norm()) <= 1e-4 * scale, name
    assert compared >= len(dense) - 1


def test_rows_are_sorted_by_expert_and_stay_in_order_within_one() -> None:
    """Rows that came grouped by peer and expert are grouped by expert, peers in order."""
    counts = torch.tensor([[2, 1], [1, 2]])
    assert expert_order(counts).tolist() == [0, 1, 3, 2, 4, 5]


def test_every_world_size_starts_from_the_same_weights() -> None:
    """A parameter's initial value depends on its name, not on which experts a rank owns."""
    whole = dict(build_model(CONFIG, range(8)).named_parameters())
    part = dict(build_model(CONFIG, range(4, 6)).named_parameters())
    assert all(torch.equal(whole[name], value) for name, value in part.items())
    assert any(".experts.5." in name for name in part)
