"""The RL half of the trainer: the task and its verifier, rollouts, the GRPO loss."""
