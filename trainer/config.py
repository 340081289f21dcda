"""What a training run is configured by; it travels in the run's manifest.

Contract: every field has a default that gives the demo's workload, unknown fields and impossible
values are refused with the field's name. Learning rates are per step, times are seconds.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from tailwatch.errors import UsageError


class TrainerConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Model, task and loop of one run.

    The task: a prompt is `digits_min` to `digits_max` digits and a separator, the answer the digits
    reversed and an end mark, the reward 1 for exactly that and 0 otherwise. Prompts of mixed
    length keep the reward rising for hundreds of iterations: short ones are solved first.
    Of checkpoints the newest `checkpoint_keep` stay, and each whose step `checkpoint_keep_every`
    divides, within the quotas of bytes and inodes. `checkpoint_async` lets training go on while
    one is written; `checkpoint_memory` puts this machine's memory in front of the disk.
    With each checkpoint the policy is evaluated on `eval_prompts` prompts it never trains on.
    `leave_seconds` is how long an order to leave or to re-form may take: longer than an iteration
    with a checkpoint, shorter than the grace period of whoever evicts.
    """

    seed: int = 0
    layers: int = 2
    d_model: int = 64
    heads: int = 4
    experts: int = 8
    top_k: int = 2
    d_expert: int = 128
    aux_weight: float = 0.01
    base: int = 10
    digits_min: int = 2
    digits_max: int = 6
    sft_steps: int = 30
    sft_sequences: int = 256
    sft_learning_rate: float = 2.5e-4
    prompts: int = 16
    group: int = 8
    updates: int = 2
    learning_rate: float = 3e-5
    clip_low: float = 0.2
    clip_high: float = 0.28
    checkpoint_every: int = 40
    checkpoint_keep: int = 4
    checkpoint_keep_every: int | None = None
    checkpoint_max_bytes: int | None = None
    checkpoint_max_inodes: int | None = None
    checkpoint_async: bool = False
    checkpoint_memory: bool = False
    eval_prompts: int = 128
    warmup_steps: int = 5
    max_steps: int = 100_000
    leave_seconds: float = 30.0

    def check(self, world_size: int | None = None) -> None:
        """Raise UsageError naming the first field that cannot be."""

        def need(ok: bool, field: str, expected: str) -> None:
            if not ok:
                found = getattr(self, field)
                raise UsageError(f"is {found}, expected {expected}", place=field)

        limits = {
            "layers": 128, "d_model": 16_384, "heads": 256, "experts": 1024, "d_expert": 65_536,
            "prompts": 65_536, "updates": 64, "sft_sequences": 65_536, "eval_prompts": 65_536,
        }  # fmt: skip
        for field, most in limits.items():
            need(1 <= getattr(self, field) <= most, field, f"1 to {most}")
        need(self.d_model % self.heads == 0, "heads", f"a divisor of d_model {self.d_model}")
        need(1 <= self.top_k <= self.experts, "top_k", f"1 to {self.experts}")
        need(2 <= self.base <= 10, "base", "2 to 10")
        need(2 <= self.group <= 1024, "group", "2 to 1024: an advantage needs a group")
        need(1 <= self.digits_min <= self.digits_max, "digits_min", f"1 to {self.digits_max}")
        need(self.digits_max <= 64, "digits_max", "at most 64")
        need(self.sft_steps >= 0, "sft_steps", "0 or more")
        need(self.warmup_steps >= 0, "warmup_steps", "0 or more")
        need(0 <= self.aux_weight < 10, "aux_weight", "0 or more and below 10")
        need(0 < self.clip_low < 1, "clip_low", "above 0 and below 1")
        need(0 < self.clip_high < 10, "clip_high", "above 0 and below 10")
        need(0 < self.leave_seconds <= 3600, "leave_seconds", "above 0 and at most 3600 s")
        need(0 <= self.seed < 2**31, "seed", "0 or more and below 2**31")
        for field in ("learning_rate", "sft_learning_rate"):
            need(0 < getattr(self, field) < 1, field, "above 0 and below 1")
        need(self.checkpoint_every >= 1, "checkpoint_every", "at least 1 step")
        need(self.checkpoint_keep >= 2, "checkpoint_keep", "at least 2: one to fall back to")
        for field in ("checkpoint_keep_every", "checkpoint_max_bytes", "checkpoint_max_inodes"):
            need((getattr(self, field) or 1) >= 1, field, "at least 1, or none")
        need(self.max_steps >= 1, "max_steps", "at least 1")
        if world_size is not None:
            for field in ("experts", "prompts", "sft_sequences", "eval_prompts"):
                multiple = getattr(self, field) % world_size == 0
                need(multiple, field, f"a multiple of the world size {world_size}")

    @property
    def workload(self) -> str:
        """A short name that is equal for equal work: the label `workload` of every metric."""
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:8]
        return f"reverse-digits-{digest}"

    def configuration(self, world_size: int) -> str:
        """What makes two steps comparable: the workload and the size of expert parallelism."""
        return f"{self.workload}/ep{world_size}"


def config_from(data: Any, source: str) -> TrainerConfig:
    """Return a checked configuration from plain data (parsed JSON); `source` is for messages."""
    try:
        config = msgspec.convert(data, TrainerConfig)
        config.check()
    except msgspec.ValidationError as error:
        raise UsageError(str(error), source=source) from None
    except UsageError as error:
        raise UsageError(str(error), source=source) from None
    return config
