"""Sources of a node agent, one file each.

A collector is registered here, and every one of them reports whether its last read succeeded, how
old its data are and how long the read took; a source that fails costs no other its series.
"""

from tailwatch.agents.node.collectors.base import Collector, NodeConfig, Source
from tailwatch.agents.node.collectors.steps import StepsCollector

COLLECTORS: tuple[type[Collector], ...] = (StepsCollector,)

__all__ = ["COLLECTORS", "Collector", "NodeConfig", "Source", "StepsCollector"]
