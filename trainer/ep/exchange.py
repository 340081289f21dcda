"""The protocol between a MoE layer and whatever carries its token rows.

Contract: `dispatch` takes rows sorted by global expert and returns the rows for this rank's
experts, sorted by local expert; `combine` is its inverse and returns the experts' outputs in the
order in which the rows were given. Both are differentiable, and the backward pass of one is the
forward pass of the other. Counts are exchanged and checked before any row moves, because
mismatched splits make some backends return wrong rows instead of an error.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Dispatched(NamedTuple):
    """Rows as the experts' owner sees them.

    rows: (m, d), sorted by local expert. expert_counts: rows of each local expert.
    send_splits / recv_splits: rows to and from each peer. order: (m,) index that sorted the rows
    received by peer into rows sorted by expert.
    """

    rows: Tensor
    expert_counts: list[int]
    send_splits: list[int]
    recv_splits: list[int]
    order: Tensor


class ExpertExchange(Protocol):
    """Carries token rows between ranks; one instance a rank, used by all layers in turn."""

    def dispatch(self, rows: Tensor, counts: Tensor, layer: int) -> Dispatched:
        """Send `rows` (n, d), sorted by global expert with `counts` (experts,), to their owners."""
        ...

    def combine(self, outputs: Tensor, dispatched: Dispatched, layer: int) -> Tensor:
        """Return the experts' outputs (n, d) in the order of the rows given to `dispatch`."""
        ...


def expert_order(counts: Tensor) -> Tensor:
    """Return the index that sorts rows grouped by (peer, expert) into rows grouped by expert.

    `counts`: (peers, local experts), rows of each group in the order in which they lie.
    """
    peers, experts = counts.shape
    expert_of_group = torch.arange(experts).repeat(peers)
    expert_of_row = torch.repeat_interleave(expert_of_group, counts.reshape(-1))
    return torch.argsort(expert_of_row, stable=True)
