"""The training loop of one rank: supervised steps, then GRPO, orders at each boundary.

Contract: a step is one optimizer update, numbered from 1; a checkpoint named N holds the state
after step N and is only taken at the end of an iteration, so a restart never needs an old rollout;
the last step of a run always has one. At equal world size a step computed again gives the same loss
to the last digit.

Left out on purpose: gradient clipping (its norm would need one more collective over experts) and a
reference model (no KL term in the default loss).
"""

from __future__ import annotations

import time
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from tailwatch.control import Order
from tailwatch.records import Stage
from tailwatch.trainer.checkpoint import CheckpointStore, Emit, SaveError
from tailwatch.trainer.config import TrainerConfig
from tailwatch.trainer.ep import GlooExchange
from tailwatch.trainer.orders import Answer, RankOrders
from tailwatch.trainer.recorder import StepRecorder
from tailwatch.trainer.rl.grpo import group_advantages, grpo_loss, token_logprobs
from tailwatch.trainer.rl.rollout import RolloutEngine
from tailwatch.trainer.rl.task import ReverseDigits
from tailwatch.trainer.state import TrainerState, build_model

Outcome = Literal["finished", "reform", "left"]


class Trainer:
    """One rank of one attempt, from its first step to its outcome."""

    def __init__(
        self,
        config: TrainerConfig,
        *,
        node: str,
        recorder: StepRecorder,
        exchange: GlooExchange,
        checkpoints: CheckpointStore,
        orders: RankOrders,
        answer: Answer,
        emit: Emit,
        attempt: int,
        state: TrainerState,
    ) -> None:
        self.config = config
        self.node = node
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.recorder = recorder
        self.exchange = exchange
        self.checkpoints = checkpoints
        self.orders = orders
        self.answer = answer
        self.emit = emit
        self.attempt = attempt
        self.state = state
        self.task = ReverseDigits(config)
        self.model = state.model
        copy = build_model(config, range(config.experts))
        self.rollouts = RolloutEngine(copy, self.model, self.task)
        self._shared = [p for n, p in self.model.named_parameters() if ".experts." not in n]
        self._first_step = state.step + 1
        self._last_reward: float | None = None

    def train(self) -> Outcome:
        """Run until the last step or until an order ends this attempt."""
        while self.state.step < self.config.max_steps:
            if self.state.step < self.config.sft_steps:
                outcome = self._supervised_iteration()
            else:
                outcome = self._grpo_iteration()
            if outcome is not None:
                return outcome
        return "finished"

    def _supervised_iteration(self) -> Outcome | None:
        config, task, recorder = self.config, self.task, self.recorder
        self._begin("sft")
        with recorder.phase("data"):
            per_rank = config.sft_sequences // self.world_size
            every = task.prompts("sft", self.state.iteration, config.sft_sequences)
            prompts = every[self.rank * per_rank : (self.rank + 1) * per_rank]
            answers = task.answers(prompts)
            mask = answers != task.pad
            total = float((task.answers(every) != task.pad).sum())
        with recorder.phase("forward_backward"):
            self._suffer()
            logits = self._answer_logits(prompts, answers)
            logprobs = token_logprobs(logits, answers)
            loss = -(logprobs * mask).sum() / total
            self._backward(loss)
        return self._update(loss, None, mask.sum(1), 0, last=True)

    def _grpo_iteration(self) -> Outcome | None:
        config, task, recorder = self.config, self.task, self.recorder
        self._begin("grpo")
        with recorder.phase("weight_sync"), recorder.wait("dp"):
            self.rollouts.sync(self.state.iteration)
        with recorder.phase("data"):
            per_rank = config.prompts // self.world_size
            every = task.prompts("grpo", self.state.iteration, config.prompts)
            mine = every[self.rank * per_rank : (self.rank + 1) * per_rank]
            prompts = mine.repeat_interleave(config.group, 0)
        with recorder.phase("rollout_generate"):
            seed = ((config.seed * 1_000_003 + self.state.iteration) * 4096 + self.rank) * 4096
            generator = torch.Generator().manual_seed(seed + self.world_size)
            completions = self.rollouts.generate(prompts, generator)
        with recorder.phase("reward"):
            rewards = task.verify(prompts, completions)
        with recorder.phase("advantage"):
            advantages = group_advantages(rewards, config.group)
            mask = task.answer_mask(completions)
            sums = torch.tensor([float(mask.sum()), float(rewards.sum())], dtype=torch.float64)
            with recorder.wait("dp"):
                dist.all_reduce(sums)
            total_tokens, reward_sum = sums.tolist()
            self._last_reward = reward_sum / (config.prompts * config.group)

        old: Tensor | None = None
        for update in range(config.updates):
            if update:
                self._begin("grpo")
            with recorder.phase("forward_backward"):
                self._suffer()
                logprobs = token_logprobs(self._answer_logits(prompts, completions), completions)
                if old is None:
                    # Same weights as the rollout: the first pass is the old policy.
                    old = logprobs.detach()
                loss = grpo_loss(
                    logprobs, old, advantages, mask, clip_low=config.clip_low,
                    clip_high=config.clip_high, global_tokens=max(total_tokens, 1.0),
                )  # fmt: skip
                self._backward(loss)
            last = update == config.updates - 1
            outcome = self._update(loss, self._last_reward, mask.sum(1), update, last=last)
            if outcome is not None:
                return outcome
        return None

    def _begin(self, stage: Stage) -> None:
        self._stage: Stage = stage
        self.exchange.reset()
        self.recorder.begin_step(self.state.step + 1, self.state.iteration, stage)

    def _suffer(self) -> None:
        delay = self.orders.delay_seconds()
        if delay:
            time.sleep(delay)

    def _answer_logits(self, prompts: Tensor, answers: Tensor) -> Tensor:
        tokens = torch.cat([prompts, answers], dim=1)[:, :-1]
        logits: Tensor = self.model(tokens, self.exchange)
        return logits[:, self.task.prompt_time - 1 :]

    def _backward(self, loss: Tensor) -> None:
        aux = torch.stack([moe.aux_loss for moe in self.model.moe_layers()]).mean()
        (loss + self.config.aux_weight * aux / self.world_size).backward()

    def _update(
        self, loss: Tensor, reward: float | None, lengths: Tensor, staleness: int, *, last: bool
    ) -> Outcome | None:
        recorder, state = self.recorder, self.state
        ordered = last and self.orders.look()
        with recorder.phase("grad_sync"):
            # Loss and the order flag ride along in the one all-reduce that exists anyway.
            extra = torch.stack([loss.detach(), torch.tensor(float(ordered))])
            flat = torch.cat([p.grad.reshape(-1) for p in self._shared if p.grad is not None])
            flat = torch.cat([flat, extra])
            with recorder.wait("dp"):
                dist.all_reduce(flat)
            at = 0
            for parameter in self._shared:
                if parameter.grad is not None:
                    length = parameter.numel()
                    parameter.grad.copy_(flat[at : at + length].view_as(parameter))
                    at += length
            global_loss, flag = float(flat[-2]), float(flat[-1])
        with recorder.phase("optimizer"):
            sft = self._stage == "sft"
            state.apply(self.config.sft_learning_rate if sft else self.config.learning_rate)
        state.step += 1
        if last:
            state.iteration += 1
        new = self.orders.spread() if flag else []
        ending = [order for order in new if order.kind in ("leave", "rejoin")]
        length = 1 if sft else self.config.updates
        every = self.config.checkpoint_every
        due = (
            any(order.kind != "fault" for order in new)
            or state.step // every > (state.step - length) // every
            or state.step >= self.config.max_steps
        )
        eval_reward = None
        if last and due:
            with recorder.phase("checkpoint"):
                # Whoever gave an order, or ends the run, is answered when the step is safe.
                self._save(wait=bool(new) or state.step >= self.config.max_steps)
            if not sft:
                with recorder.phase("eval"):
                    eval_reward = self._evaluate()
        self._poll()
        experts = [moe.expert_tokens for moe in self.model.moe_layers()]
        recorder.end_step(
            tokens=int(lengths.sum()),
            squared_tokens=int(lengths.square().sum()),
            rows_to=self.exchange.rows_to,
            rows_from=self.exchange.rows_from,
            expert_tokens=[sum(layer) for layer in zip(*experts, strict=True)],
            policy_version=self.rollouts.version,
            staleness=staleness,
            loss=global_loss,
            reward=reward,
            warmup=state.step - self._first_step < self.config.warmup_steps,
            eval_reward=eval_reward,
        )
        for order in new:
            self.answer("order_done", order)
        return self._end(ending)

    def _evaluate(self) -> float:
        """Return the share of held-out prompts that the policy answers right, likeliest tokens."""
        with self.recorder.wait("dp"):
            self.rollouts.sync(self.state.iteration)
        per_rank = self.config.eval_prompts // self.world_size
        every = self.task.prompts("eval", 0, self.config.eval_prompts)
        mine = every[self.rank * per_rank : (self.rank + 1) * per_rank]
        right = self.task.verify(mine, self.rollouts.generate(mine, None)).sum()
        with self.recorder.wait("dp"):
            dist.all_reduce(right)
        return float(right) / self.config.eval_prompts

    def _save(self, *, wait: bool) -> None:
        """Save; a failure is told and costs a checkpoint, not the job."""
        try:
            self.checkpoints.save(
                self.state.tensors(),
                step=self.state.step,
                iteration=self.state.iteration,
                attempt=self.attempt,
                extra={"world_size": self.world_size},
                wait=wait or not self.config.checkpoint_async,
            )
        except SaveError as error:
            self._tell_failure(error)

    def _poll(self) -> None:
        """Tell what became of a save in the background."""
        try:
            self.checkpoints.poll()
        except SaveError as error:
            self._tell_failure(error)

    def _tell_failure(self, error: SaveError) -> None:
        detail = {"checkpoint": str(error)[:512], "reason": error.reason}
        self.emit("failure", self.state.step, detail)

    def _end(self, ending: list[Order]) -> Outcome | None:
        if not ending:
            return None
        leaving = sorted({str(order.node) for order in ending if order.kind == "leave"})
        self.emit("leave" if leaving else "rejoin", self.state.step, {"nodes": leaving})
        # Nobody may exit before rank 0 has written: an exit makes the launcher end its siblings.
        dist.barrier()
        return "left" if self.node in leaving else "reform"
