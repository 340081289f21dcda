"""The exchange over a torch process group with uneven all-to-alls (gloo on CPU).

Cost: three collectives a layer forward (counts, dispatch, combine) and two backward. The time in
the counts exchange is the wait for the slowest peer, since it carries 8 bytes an expert.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tailwatch.ring import MarkCode
from tailwatch.trainer.ep.exchange import Dispatched, expert_order


class ExchangeClock(Protocol):
    """Who wants to know how long the parts of an exchange took; the recorder of a rank does."""

    def begin(self, code: MarkCode, argument: int = 0) -> int:
        """Leave a mark and return its monotonic time in ns."""
        ...

    def end_child(self, name: str, code: MarkCode, started_ns: int, argument: int = 0) -> int:
        """Close a child of the current phase and return its length in ns."""
        ...

    def add_wait(self, group: str, waited_ns: int) -> None:
        """Add time spent waiting for peers of a group."""
        ...


class _AllToAll(torch.autograd.Function):
    """Uneven all-to-all whose gradient travels the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], recv: list[int]) -> Tensor:
        ctx.splits = (send, recv)
        out = rows.new_empty((sum(recv), rows.shape[1]))
        dist.all_to_all_single(out, rows.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        send, recv = ctx.splits
        back = grad.new_empty((sum(send), grad.shape[1]))
        dist.all_to_all_single(back, grad.contiguous(), send, recv)
        return back, None, None


def _all_to_all(rows: Tensor, send: list[int], recv: list[int]) -> Tensor:
    out: Tensor = _AllToAll.apply(rows, send, recv)  # type: ignore[no-untyped-call] # torch's
    return out


class GlooExchange:
    """Experts split evenly over all ranks, in order of rank.

    Attributes:
        rows_to, rows_from: token rows sent to and received from each peer since `reset`.
    """

    def __init__(self, clock: ExchangeClock) -> None:
        self._clock = clock
        self._peers = dist.get_world_size()
        self._experts_since = 0
        self.reset()

    def reset(self) -> None:
        """Start counting rows anew: at the beginning of a step."""
        self.rows_to = [0] * self._peers
        self.rows_from = [0] * self._peers

    def dispatch(self, rows: Tensor, counts: Tensor, layer: int) -> Dispatched:
        """See `ExpertExchange.dispatch`; raises RuntimeError when the counts cannot be true."""
        clock = self._clock
        sent = counts.reshape(self._peers, -1)
        received = torch.empty_like(sent)
        started = clock.begin(MarkCode.EP_COUNTS, layer)
        dist.all_to_all_single(received, sent.contiguous())
        waited = clock.end_child("ep_counts", MarkCode.EP_COUNTS, started, layer)
        clock.add_wait("ep", waited)

        send, recv = sent.sum(1).tolist(), received.sum(1).tolist()
        if sum(send) != len(rows) or min(recv) < 0:
            raise RuntimeError(f"layer {layer}: {len(rows)} rows, but counts say {send} and {recv}")
        for peer in range(self._peers):
            self.rows_to[peer] += send[peer]
            self.rows_from[peer] += recv[peer]

        started = clock.begin(MarkCode.EP_DISPATCH, layer)
        arrived = _all_to_all(rows, send, recv)
        clock.end_child("ep_dispatch", MarkCode.EP_DISPATCH, started, layer)
        # What lies between the exchanges is the experts' own work.
        self._experts_since = clock.begin(MarkCode.EP_EXPERTS, layer)
        order = expert_order(received)
        return Dispatched(arrived[order], received.sum(0).tolist(), send, recv, order)

    def combine(self, outputs: Tensor, dispatched: Dispatched, layer: int) -> Tensor:
        """See `ExpertExchange.combine`."""
        clock = self._clock
        clock.end_child("ep_experts", MarkCode.EP_EXPERTS, self._experts_since, layer)
        started = clock.begin(MarkCode.EP_COMBINE, layer)
        by_peer = outputs[torch.argsort(dispatched.order)]
        back = _all_to_all(by_peer, dispatched.recv_splits, dispatched.send_splits)
        clock.end_child("ep_combine", MarkCode.EP_COMBINE, started, layer)
        return back
