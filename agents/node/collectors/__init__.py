"""Sources of a node agent, one file each.

A module in this folder that does not start with an underscore registers its collector when it is
imported; all of them are imported here. What is heavy (gRPC, NVML) a collector imports when it is
first used.
"""

import importlib
import pkgutil

from tailwatch.agents.node.base import COLLECTORS, Collector, NodeConfig, Part

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["COLLECTORS", "Collector", "NodeConfig", "Part"]
