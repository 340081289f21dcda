"""Reads sources without an agent around them: one read of every part, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.agents import Samples, parse
from support.procs import eventually
from tailwatch.agents.node.collectors import COLLECTORS, NodeConfig
from tailwatch.agents.node.lane import Slot
from tailwatch.agents.node.watch import Watch


class Reading:
    """A watch on sources of a tree, each part read at least once."""

    def __init__(self, sysfs: Path, *names: str, **settings: Any) -> None:
        config = NodeConfig(node="n", sysfs=sysfs, **settings)
        self.watch = Watch([COLLECTORS[name](config) for name in names], config)
        self.watch.start()
        assert eventually(self.watch.settled)

    def again(self) -> None:
        """Look for devices, and then read each part once more."""
        self.watch.rediscover()
        _wait_for([source.discovery for source in self.watch.sources])
        self.watch.nudge()
        _wait_for([slot for source in self.watch.sources for slot in source.slots()])

    def samples(self) -> Samples:
        """Return the samples as of now."""
        return parse(self.watch.render().render())

    def close(self) -> None:
        """End the watch."""
        self.watch.close()


def _wait_for(slots: list[Slot]) -> None:
    """Wait until each has been read once more, from beginning to end."""
    before = {id(slot): slot.finished + (slot.started is not None) for slot in slots}
    assert eventually(lambda: all(s.gone or s.finished > before[id(s)] for s in slots))


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Return the only sample with at least these labels; None without one."""
    wanted = set(labels.items())
    found = [v for (n, ls), v in samples.items() if n == name and wanted <= ls]
    assert len(found) <= 1, found
    return found[0] if found else None


def labels_of(samples: Samples, name: str, **labels: str) -> dict[str, str]:
    """Return all labels of the only sample with at least these."""
    wanted = set(labels.items())
    (found,) = [dict(ls) for n, ls in samples if n == name and wanted <= ls]
    return found
