"""Fixtures for the tests of the agents."""

from __future__ import annotations

from support.nvml.fixtures import gpu_node

__all__ = ["gpu_node"]
