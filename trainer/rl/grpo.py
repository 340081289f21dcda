"""The GRPO loss with clip-higher and global token normalisation (DAPO's aggregation).

Contract: the loss of a rank is its part of the *global* token mean, so gradients are summed over
ranks, never averaged, and the result does not depend on how a batch is split.

Source: arXiv 2402.03300 (group advantage), 2503.14476 (clip-higher, token mean).
"""

from __future__ import annotations

import torch
from torch import Tensor


def group_advantages(rewards: Tensor, group: int) -> Tensor:
    """Return (rewards - group mean) / (group std + 1e-6); exactly 0 for a group of equal rewards.

    Shape (groups * group,), members of a group beside each other; std is unbiased.
    """
    grouped = rewards.view(-1, group)
    centred = grouped - grouped.mean(1, keepdim=True)
    scaled = centred / (grouped.std(1, keepdim=True) + 1e-6)
    equal = (grouped == grouped[:, :1]).all(1, keepdim=True)
    return torch.where(equal, torch.zeros_like(scaled), scaled).reshape(-1)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return log p of `tokens` (batch, time) under `logits` (batch, time, vocabulary)."""
    picked = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return picked - torch.logsumexp(logits, dim=-1)


def grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    global_tokens: float,
) -> Tensor:
    """Return this rank's share of the clipped policy loss.

    logprobs, old_logprobs, mask: (batch, time); advantages: (batch,); `global_tokens` is the number
    of masked-in tokens over all ranks.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    advantage = advantages.unsqueeze(1)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    return -(objective * mask).sum() / global_tokens
