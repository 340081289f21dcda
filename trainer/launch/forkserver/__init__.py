"""Ranks that cost no imports: forked from a process that has done them, under torchrun.

    torchrun's agent ── starts ──▶ shim ── asks over a unix socket ──▶ fork server ── forks ──▶ rank
            ▲                       │ signals, with their sender ─────────▶ │ ───────────────────▶ │
            └── its exit status ────┘ ◀──────────────── how it ended ───────┘ ◀────────────────────┘

Contract: a rank that was forked cannot be told from one that was started, except by how soon it
begins. Where the two would differ (another environment, other limits, code that has changed since,
no server) the shim starts the rank as torchrun would have, and says why on its stderr. No rank
outlives its shim or its fork server, whatever kills those; see `shim` and `server`.

Cost: one more process of some 10 MB a rank, and one a node that holds the imports. Nothing runs
while the ranks run.
"""

from tailwatch.trainer.launch.forkserver.hold import ForkServer

__all__ = ["ForkServer"]
