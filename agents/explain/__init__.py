"""What pasted log lines mean: incidents, the root among them, and what is only noise."""

from tailwatch.agents.explain.explain import Explanation, Incident, Root, explain
from tailwatch.agents.explain.source import read_lines

__all__ = ["Explanation", "Incident", "Root", "explain", "read_lines"]
