"""NVML for the collectors: one library a process, calls that say which device they hang on.

The modules here take their errors from the collectors' base, and the collectors are imported with
it; so they come first, whichever module is asked for.
"""

import tailwatch.agents.node.collectors  # noqa: F401
