"""A mixture-of-experts layer: top-k router, dropless dispatch, experts kept one by one.

Contract: expert parameters are named by their *global* index (`experts.5.up`), so a checkpoint can
be read at any world size. A layer holds only the experts in `owned`; which rank computes which row
is the exchange's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailwatch.trainer.ep.exchange import ExpertExchange


class Expert(nn.Module):
    """Two matrices and a GELU; shapes (d_model, d_expert) and (d_expert, d_model)."""

    def __init__(self, d_model: int, d_expert: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(d_model, d_expert))
        self.down = nn.Parameter(torch.empty(d_expert, d_model))

    def forward(self, rows: Tensor) -> Tensor:
        """(m, d_model) -> (m, d_model)."""
        out: Tensor = F.gelu(rows @ self.up) @ self.down
        return out


class MoE(nn.Module):
    """Routes each token to `top_k` of `experts` experts.

    Attributes after a forward pass:
        aux_loss: load-balancing loss (number of experts x sum of share x mean probability).
        expert_tokens: rows each *owned* expert computed, in the order of `owned`.
    """

    def __init__(
        self,
        *,
        layer: int,
        d_model: int,
        d_expert: int,
        experts: int,
        top_k: int,
        owned: Sequence[int],
    ) -> None:
        super().__init__()
        self.layer = layer
        self.top_k = top_k
        self.owned = list(owned)
        self.router = nn.Linear(d_model, experts, bias=False)
        self.experts = nn.ModuleDict({str(i): Expert(d_model, d_expert) for i in owned})
        self.aux_loss = torch.zeros(())
        self.expert_tokens: list[int] = []

    def forward(self, x: Tensor, exchange: ExpertExchange) -> Tensor:
        """(n, d_model) -> (n, d_model)."""
        probabilities = torch.softmax(self.router(x), dim=-1)
        weights, chosen = probabilities.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)

        expert_of_row = chosen.reshape(-1)
        order = torch.argsort(expert_of_row, stable=True)
        token_of_row = order // self.top_k
        counts = torch.bincount(expert_of_row, minlength=probabilities.shape[1])
        share = counts / max(len(expert_of_row), 1)
        mean = probabilities.sum(0) / max(len(x), 1)  # a rank without tokens has no NaN either
        self.aux_loss = probabilities.shape[1] * (share * mean).sum()

        dispatched = exchange.dispatch(x[token_of_row], counts, self.layer)
        self.expert_tokens = dispatched.expert_counts
        parts = torch.split(dispatched.rows, dispatched.expert_counts)
        computed = [self.experts[str(e)](part) for e, part in zip(self.owned, parts, strict=True)]
        returned = exchange.combine(torch.cat(computed), dispatched, self.layer)

        weighted = returned * weights.reshape(-1)[order].unsqueeze(1)
        return torch.zeros_like(x).index_add(0, token_of_row, weighted)
