"""Invariants of the GRPO loss and of the task's verifier."""

from __future__ import annotations

import torch

from tailwatch.trainer.config import TrainerConfig
from tailwatch.trainer.rl.grpo import group_advantages, grpo_loss, token_logprobs
from tailwatch.trainer.rl.task import ReverseDigits

TASK = ReverseDigits(TrainerConfig())


def test_advantages_of_a_group_sum_to_zero() -> None:
    """Within a group the advantages cancel."""
    rewards = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    assert group_advantages(rewards, 4).view(2, 4).sum(1).abs().max() < 1e-6


def test_equal_rewards_give_exactly_no_advantage() -> None:
    """A group without a difference teaches nothing, to the last bit."""
    assert group_advantages(torch.full((8,), 0.3), 4).tolist() == [0.0] * 8


def test_the_first_update_has_ratio_one() -> None:
    """With the old policy equal to the new one the loss is minus the mean advantage."""
    logprobs = torch.randn(4, 3)
    advantages = torch.tensor([1.0, -1.0, 2.0, 0.5])
    loss = grpo_loss(
        logprobs, logprobs, advantages, torch.ones(4, 3),
        clip_low=0.2, clip_high=0.28, global_tokens=12.0,
    )  # fmt: skip
    assert abs(float(loss) + 2.5 * 3 / 12) < 1e-6


def test_the_loss_does_not_depend_on_how_the_batch_is_split() -> None:
    """Shares of the global token mean add up to the loss of the whole batch."""
    torch.manual_seed(0)
    new, old, advantages = torch.randn(6, 4), torch.randn(6, 4), torch.randn(6)
    mask = (torch.rand(6, 4) > 0.3).float()

    def part(rows: slice) -> float:
        loss = grpo_loss(
            new[rows], old[rows], advantages[rows], mask[rows],
            clip_low=0.2, clip_high=0.28, global_tokens=float(mask.sum()),
        )  # fmt: skip
        return float(loss)

    whole = part(slice(0, 6))
    assert abs(part(slice(0, 2)) + part(slice(2, 6)) - whole) < 1e-5


def test_clipping_stops_the_gradient_of_a_ratio_that_ran_away() -> None:
    """A token whose ratio is above the clip and whose advantage is positive pulls no more."""
    old = torch.zeros(1, 1)
    new = torch.full((1, 1), 0.5, requires_grad=True)
    loss = grpo_loss(
        new, old, torch.tensor([1.0]), torch.ones(1, 1),
        clip_low=0.2, clip_high=0.28, global_tokens=1.0,
    )  # fmt: skip
    loss.backward()
    assert new.grad is not None
    assert float(new.grad) == 0.0


def test_token_logprobs_are_those_of_a_softmax() -> None:
    """The log-probabilities equal the plain log-softmax, gathered."""
    logits, tokens = torch.randn(2, 3, 5), torch.randint(0, 5, (2, 3))
    plain = torch.log_softmax(logits, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(token_logprobs(logits, tokens), plain)


def test_the_right_answer_and_only_it_is_rewarded() -> None:
    """The verifier gives 1 for the exact answer and 0 when any token up to the end is another."""
    prompts = TASK.prompts("grpo", 3, 32)
    answers = TASK.answers(prompts)
    assert TASK.verify(prompts, answers).tolist() == [1.0] * 32
    for column in range(TASK.answer_time):
        wrong = answers.clone()
        wrong[:, column] = (wrong[:, column] + 1) % 10
        matters = answers[:, column] != TASK.pad
        assert TASK.verify(prompts, wrong)[matters].sum() == 0


def test_the_mask_ends_with_the_first_end_mark() -> None:
    """Tokens after the first end mark, also further end marks, do not count."""
    end = TASK.end
    completions = torch.tensor([[1, end, 5, end], [1, 2, 3, 4]])
    mask = TASK.answer_mask(completions)
    assert mask.tolist() == [[True, True, False, False], [True] * 4]


def test_prompts_depend_on_seed_and_index_alone() -> None:
    """The same index gives the same prompts again, another index others."""
    assert torch.equal(TASK.prompts("grpo", 7, 8), TASK.prompts("grpo", 7, 8))
    assert not torch.equal(TASK.prompts("grpo", 7, 8), TASK.prompts("grpo", 8, 8))
