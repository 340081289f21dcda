"""What is watched: a mixture-of-experts GRPO trainer, instrumented per step."""
