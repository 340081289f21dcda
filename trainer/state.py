"""What a checkpoint holds: model, optimizer moments, step and iteration, by global names.

Contract: `tensors()` returns the live tensors under names that do not depend on rank or world
size; expert tensors appear only on the rank that owns the expert. Loading writes into them in
place, so the model and the optimizer see it at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tailwatch.trainer.config import TrainerConfig
from tailwatch.trainer.model import Decoder
from tailwatch.trainer.rl.task import ReverseDigits


def build_model(config: TrainerConfig, owned: Sequence[int]) -> Decoder:
    """Return a fresh decoder that owns the experts `owned`."""
    task = ReverseDigits(config)
    return Decoder(
        vocabulary=task.vocabulary,
        pad=task.pad,
        max_time=task.max_time,
        layers=config.layers,
        d_model=config.d_model,
        heads=config.heads,
        d_expert=config.d_expert,
        experts=config.experts,
        top_k=config.top_k,
        owned=owned,
        seed=config.seed,
    )


class TrainerState:
    """A model with its AdamW state and counters."""

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.step = 0
        self.iteration = 0
        self._named = dict(model.named_parameters())
        self._optimizer = torch.optim.AdamW(self._named.values(), betas=(0.9, 0.95), foreach=True)
        for parameter in self._named.values():
            self._optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the state by its global name."""
        named: dict[str, Tensor] = {}
        for name, parameter in self._named.items():
            named[f"model.{name}"] = parameter.detach()
            for key, value in self._optimizer.state[parameter].items():
                named[f"optim.{name}.{key}"] = value
        return named

    def apply(self, learning_rate: float) -> None:
        """Take one optimizer step and clear the gradients.

        An expert without a single token has no gradient of its own and gets one of zeros, so that
        its moments decay alike on every rank and world size.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        for parameter in self._named.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        self._optimizer.zero_grad()
