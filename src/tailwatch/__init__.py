"""Tailwatch watches expert-parallel RL post-training and proves that it survives."""

__version__ = "0.1.0"
