"""A decoder of pre-norm blocks: causal attention, then a mixture of experts.

Contract: initial weights depend on the seed and the parameter's name alone, never on the rank, so
every world size starts from the same model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailwatch.trainer.ep.exchange import ExpertExchange
from tailwatch.trainer.model.moe import MoE


class Block(nn.Module):
    """One layer of the decoder."""

    def __init__(self, d_model: int, heads: int, moe: MoE) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.RMSNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.norm_moe = nn.RMSNorm(d_model)
        self.moe = moe

    def forward(self, x: Tensor, mask: Tensor, exchange: ExpertExchange) -> Tensor:
        """(batch, time, d_model), mask (batch, 1, time, time) true where attention may look."""
        batch, time, width = x.shape
        shape = (batch, time, 3, self.heads, width // self.heads)
        qkv = self.qkv(self.norm_attention(x)).view(shape)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        rows = self.norm_moe(x).reshape(batch * time, width)
        mixed: Tensor = self.moe(rows, exchange)
        return x + mixed.view(batch, time, width)


class Decoder(nn.Module):
    """Token ids (batch, time) to logits (batch, time, vocabulary)."""

    def __init__(
        self,
        *,
        vocabulary: int,
        pad: int,
        max_time: int,
        layers: int,
        d_model: int,
        heads: int,
        d_expert: int,
        experts: int,
        top_k: int,
        owned: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__()
        self.pad = pad
        self.embed = nn.Embedding(vocabulary, d_model)
        self.position = nn.Embedding(max_time, d_model)
        self.blocks = nn.ModuleList(
            Block(
                d_model,
                heads,
                MoE(
                    layer=i, d_model=d_model, d_expert=d_expert, experts=experts,
                    top_k=top_k, owned=owned,
                ),
            )
            for i in range(layers)
        )  # fmt: skip
        self.norm = nn.RMSNorm(d_model)
        self.head = nn.Linear(d_model, vocabulary, bias=False)
        self._initialise(seed, layers)

    def _initialise(self, seed: int, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # norms start at one
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            std = 0.02 if "embed" in name or "position" in name else parameter.shape[-1] ** -0.5
            if name.endswith(("out.weight", "down")):
                std /= math.sqrt(2 * layers)
            with torch.no_grad():
                parameter.normal_(0.0, std, generator=generator)

    def moe_layers(self) -> list[MoE]:
        """The mixture layers, first to last."""
        return [block.moe for block in self.blocks]  # type: ignore[misc] # ModuleList is untyped

    def forward(self, tokens: Tensor, exchange: ExpertExchange) -> Tensor:
        """(batch, time) -> (batch, time, vocabulary); padding is on the left and not attended."""
        time = tokens.shape[1]
        causal = torch.ones(time, time, dtype=torch.bool).tril()
        # A padding position looks at itself, or its softmax would be over nothing.
        visible = (tokens != self.pad).unsqueeze(1) | torch.eye(time, dtype=torch.bool)
        mask = (causal & visible).unsqueeze(1)
        x = self.embed(tokens) + self.position.weight[:time]
        for block in self.blocks:
            x = block(x, mask, exchange)
        logits: Tensor = self.head(self.norm(x))
        return logits
