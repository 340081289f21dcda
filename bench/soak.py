"""Resident memory of a node agent that reads and renders without a pause.

    python bench/soak.py CYCLES [flags of `tailwatch agent node`]

The agent's own watch runs its sources on their own threads, EFA and InfiniBand devices as fast as
they can be read, every other source and the discovery 20 times as often as usual. A cycle is one
read of every EFA and InfiniBand device and one exposition. Prints `[[cycle, MiB], ...]`, 100 of
them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from tailwatch.agents.node import source
from tailwatch.agents.node.collectors import COLLECTORS
from tailwatch.agents.node.flags import parse
from tailwatch.agents.node.lane import Slot
from tailwatch.agents.node.watch import Watch

FASTER = 20
POINTS = 100
FABRIC = ("efa", "infiniband")


def resident_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def fabric_slots(watch: Watch) -> list[Slot]:
    """Return the slots of the devices that are read as fast as they can be."""
    return [slot for s in watch.sources if s.name in FABRIC for slot in s.slots()]


def soak(cycles: int, arguments: list[str]) -> list[tuple[int, float]]:
    """Run so many cycles; return at which of them how much memory was resident, in MiB."""
    flags = parse(["--node", "n", *arguments])
    for collector in COLLECTORS.values():
        collector.interval /= FASTER
    source.DISCOVER_SECONDS /= FASTER
    watch = Watch([COLLECTORS[name](flags.config) for name in flags.collectors], flags.config)
    watch.start()
    while not watch.settled():
        time.sleep(0.01)
    points = []
    for cycle in range(cycles):
        slots = fabric_slots(watch)
        before = [slot.finished for slot in slots]
        for name in FABRIC:
            watch.nudge(name)
        while any(slot.finished == b for slot, b in zip(slots, before, strict=True)):
            time.sleep(0.002)
        watch.render().render()
        if cycle % max(cycles // POINTS, 1) == 0:
            points.append((cycle, resident_mib()))
    if not all(slot.error is None for s in watch.sources for slot in s.slots()):
        raise SystemExit("a source failed: " + "; ".join(watch.readiness().lines))
    watch.close()
    return points


if __name__ == "__main__":
    print(json.dumps(soak(int(sys.argv[1]), sys.argv[2:])))
