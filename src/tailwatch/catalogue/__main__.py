"""Prints the page `docs/metrics.md`: `python -m tailwatch.catalogue`."""

from tailwatch.catalogue import markdown

print(markdown(), end="")
