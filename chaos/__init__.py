"""Breaks the job on purpose, watches what happens, and judges it from what was written down."""
