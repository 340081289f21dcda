"""What the runner needs from whoever runs the job."""

from __future__ import annotations

from typing import Protocol

from tailwatch.runs import RunDirectory


class Lost(Exception):
    """A part that a verdict depends on is gone: its name and why."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


class JobTarget(Protocol):
    """A running job and the parts that watch it."""

    run: RunDirectory

    def node_running(self, node: str) -> bool:
        """Whether the node's launcher runs."""
        ...

    def start_node(self, node: str) -> None:
        """Bring a node back that has left."""
        ...

    def check(self) -> None:
        """Raise `Lost` when a part that should run does not."""
        ...

    def baseline(self, configuration: str) -> dict[str, float] | None:
        """Return the baseline that the job agent froze for a configuration, or None so far.

        Keys: first_step, last_step, n, n_eff, estimate, lower, upper (seconds).
        """
        ...
