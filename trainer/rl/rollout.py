"""Rollouts: sampling completions from a full copy of the policy on every rank.

Contract: the copy is refreshed by `sync` at the start of an iteration and carries the policy's
version; generation then needs no communication, as in a colocated rollout engine. Sampling depends
on (seed, iteration, rank, world size) alone.

Cost: one all-gather of the experts an iteration; `answer_time` forward passes of the local batch.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tailwatch.trainer.ep import LocalExchange
from tailwatch.trainer.model import Decoder
from tailwatch.trainer.rl.task import ReverseDigits


class RolloutEngine:
    """Holds the copy and samples from it.

    Args:
        copy: a decoder that owns all experts, same seed and sizes as the policy.
        policy: the trained model, which owns a part of them.
    """

    def __init__(self, copy: Decoder, policy: Decoder, task: ReverseDigits) -> None:
        self._copy = copy.requires_grad_(False)
        self._task = task
        self._exchange = LocalExchange()
        self.version = -1
        targets = dict(copy.named_parameters())
        own = dict(policy.named_parameters())
        self._replicated = [(targets[name], own[name]) for name in own if ".experts." not in name]
        # The same expert slots on every rank, in the same order, whatever experts it owns.
        owned = policy.moe_layers()[0].owned
        slots = [
            (layer, slot, leaf)
            for layer in range(len(policy.moe_layers()))
            for slot in range(len(owned))
            for leaf in ("up", "down")
        ]

        def name(layer: int, expert: int, leaf: str) -> str:
            return f"blocks.{layer}.moe.experts.{expert}.{leaf}"

        self._mine = [own[name(layer, owned[slot], leaf)] for layer, slot, leaf in slots]
        self._theirs = [
            [targets[name(layer, rank * len(owned) + slot, leaf)] for layer, slot, leaf in slots]
            for rank in range(dist.get_world_size())
        ]

    @torch.no_grad()
    def sync(self, version: int) -> None:
        """Refresh the copy from the policy of all ranks: the weight sync."""
        flat = torch.cat([parameter.reshape(-1) for parameter in self._mine])
        parts = [torch.empty_like(flat) for _ in self._theirs]
        dist.all_gather(parts, flat)
        for part, targets in zip(parts, self._theirs, strict=True):
            values = part.split([target.numel() for target in targets])
            for target, value in zip(targets, values, strict=True):
                target.copy_(value.view_as(target))
        for target, source in self._replicated:
            target.copy_(source)
        self.version = version

    @torch.no_grad()
    def generate(self, prompts: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return completions (batch, answer_time), padded after the end mark.

        They are sampled; without a generator each token is the likeliest.
        """
        task = self._task
        tokens = prompts
        ended = torch.zeros(len(prompts), dtype=torch.bool)
        for _ in range(task.answer_time):
            logits = self._copy(tokens, self._exchange)[:, -1]
            logits[:, task.pad] = float("-inf")
            if generator is None:
                choice = logits.argmax(-1, keepdim=True)
            else:
                choice = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)
            choice[ended] = task.pad
            ended |= choice[:, 0] == task.end
            tokens = torch.cat([tokens, choice], dim=1)
        return tokens[:, task.prompt_time :]
