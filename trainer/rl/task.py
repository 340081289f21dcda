"""The task: reverse the digits, end with the end mark; a verifier checks it exactly.

Contract: which prompts an iteration holds depends on (seed, iteration) alone, so every world size
sees the same global batch and a restart sees it again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tailwatch.trainer.config import TrainerConfig


class ReverseDigits:
    """Token ids: digits 0..base-1, then separator, end, padding.

    Prompts are padded on the left to `prompt_time` columns, so answers start at one column;
    an answer takes at most `answer_time` columns.
    """

    def __init__(self, config: TrainerConfig) -> None:
        self._config = config
        self.separator = config.base
        self.end = config.base + 1
        self.pad = config.base + 2
        self.vocabulary = config.base + 3
        self.prompt_time = config.digits_max + 1
        self.answer_time = config.digits_max + 1

    @property
    def max_time(self) -> int:
        """Columns of a prompt with its answer."""
        return self.prompt_time + self.answer_time

    def prompts(self, stream: str, index: int, count: int) -> Tensor:
        """Return prompts (count, prompt_time) of a stream ("sft", "grpo", "eval") at an index."""
        config = self._config
        offset = {"sft": 1, "grpo": 2, "eval": 3}[stream]
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + index * 4 + offset)
        digits = torch.randint(0, config.base, (count, config.digits_max), generator=generator)
        length = torch.randint(
            config.digits_min, config.digits_max + 1, (count, 1), generator=generator
        )
        column = torch.arange(config.digits_max)
        digits[column < config.digits_max - length] = self.pad
        return torch.cat([digits, torch.full((count, 1), self.separator)], dim=1)

    def answers(self, prompts: Tensor) -> Tensor:
        """Return the right answers (count, answer_time): digits reversed, end, padding."""
        count = len(prompts)
        answer = torch.full((count, self.answer_time), self.pad)
        answer[:, :-1] = prompts[:, :-1].flip(1)
        length = (answer != self.pad).sum(1)
        answer[torch.arange(count), length] = self.end
        return answer

    def verify(self, prompts: Tensor, completions: Tensor) -> Tensor:
        """Return rewards (count,): 1.0 for exactly the right answer up to its end mark, else 0."""
        right = self.answers(prompts)
        matters = right != self.pad
        return ((completions == right) | ~matters).all(1).float()

    def answer_mask(self, completions: Tensor) -> Tensor:
        """Return (count, answer_time), true up to and including the first end mark."""
        ended = (completions == self.end).int().cumsum(1)
        return (ended - (completions == self.end).int()) == 0
