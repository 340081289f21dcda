"""What holds for every test."""

from __future__ import annotations

pytest_plugins = ["support.skips"]
