"""The faults: one file each, registered by name.

A fault knows how to choose its target, how to undo itself (written to the ledger before it acts),
how to act, and how to see from outside that it acted. It never decides a verdict.
"""

from tailwatch.chaos.faults.checkpoint_corrupt import CheckpointCorrupt  # registers
from tailwatch.chaos.faults.fault import Fault, FaultContext, make_fault, register
from tailwatch.chaos.faults.node_drain import NodeDrain
from tailwatch.chaos.faults.rank_kill import RankKill
from tailwatch.chaos.faults.rank_slow import RankSlow

__all__ = [
    "CheckpointCorrupt",
    "Fault",
    "FaultContext",
    "NodeDrain",
    "RankKill",
    "RankSlow",
    "make_fault",
    "register",
]
