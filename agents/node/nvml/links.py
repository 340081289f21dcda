"""NVLink's counters by generation of GPU, and the sum over the links of a GPU.

Contract: the first rung of a ladder that a GPU answers is used for good. A sum neither falls nor
jumps when a link goes or comes: one that is gone keeps what it had counted, one that comes later
counts from then on. When the counter of any link falls, all begin anew, and the sum falls with it.

Cost: pure functions and a dictionary of links.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tailwatch.agents.node.nvml.calls import ALL_LINKS, DeviceCalls, Field

LINK_COUNT, LINK_STATE = 91, 165
_DOWN = 0
"""State of a link without a partner; 1 is active, 2 asleep."""


class Rung(NamedTuple):
    """Fields by name, factor to base units; `scope`: by link, by link or their sum, or neither."""

    fields: Mapping[str, int]
    factor: int = 1
    scope: str = "link"

    def wanted(self, links: int, per_link: bool) -> Iterator[tuple[str, Field, int | None]]:
        """Give name, field to ask for and link (None: the GPU's sum) of each counter."""
        for name, field in self.fields.items():
            if self.scope == "gpu":
                yield name, field, None
            elif self.scope == "link_or_sum" and not per_link:
                yield name, (field, ALL_LINKS), None
            else:
                for link in range(links):
                    yield name, (field, link), link


BYTES = (
    Rung({"transmit": 202, "receive": 204}),
    Rung({"transmit": 138, "receive": 139}, 1024, "link_or_sum"),
)
ERRORS = (
    Rung(
        {
            "malformed_packet": 206,
            "buffer_overrun": 207,
            "receive": 208,
            "receive_remote": 209,
            "receive_general": 210,
            "local_link_integrity": 211,
            "transmit_discard": 212,
            "recovery_successful": 213,
            "recovery_failed": 214,
            "recovery": 215,
            "effective": 219,
            "symbol": 221,
        }
    ),
    Rung({"replay": 161, "recovery": 162, "crc": 163}),
    Rung({"crc_flit": 38, "crc_data": 45, "replay": 52, "recovery": 59}, scope="gpu"),
)


class LinkSums:
    """Adds up the counters of links.

    >>> sums = LinkSums()
    >>> sums.add_up({("tx", 0): 5.0, ("tx", 1): 7.0})
    {'tx': 12.0}
    >>> sums.add_up({("tx", 0): 6.0})
    {'tx': 13.0}
    >>> sums.add_up({("tx", 0): 6.0, ("tx", 1): 8.0, ("tx", 2): 900.0})
    {'tx': 14.0}
    >>> sums.add_up({("tx", 0): 1.0, ("tx", 1): 0.0})
    {'tx': 1.0}
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], float] = {}
        self._from: dict[tuple[str, int], float] = {}
        self._names: set[str] = set()

    def add_up(self, values: Mapping[tuple[str, int], float]) -> dict[str, float]:
        """Take the counters of one read by name and link, and return the sums by name."""
        if any(value < self._last.get(key, value) for key, value in values.items()):
            self._last, self._from, self._names = {}, {}, set()
        for key, value in values.items():
            if key not in self._last:
                self._from[key] = value if key[0] in self._names else 0.0
        self._names |= {name for name, _ in values}
        self._last.update(values)
        sums: dict[str, float] = {}
        for key, value in self._last.items():
            sums[key[0]] = sums.get(key[0], 0.0) + value - self._from[key]
        return sums


class Ladder:
    """Reads one kind of counter on the rung that a GPU knows."""

    def __init__(self, rungs: tuple[Rung, ...], per_link: bool) -> None:
        self._rungs = rungs
        self._per_link = per_link
        self._sums = LinkSums()

    def read(
        self, calls: DeviceCalls, links: int
    ) -> tuple[dict[str, float], dict[tuple[str, int], float]]:
        """Return the counters of the GPU by name, and those of its links by name and link."""
        for rung in self._rungs:
            wanted = list(rung.wanted(links, self._per_link))
            values = calls.fields(field for _, field, _ in wanted)
            if not values:
                continue
            self._rungs = (rung,)
            whole: dict[str, float] = {}
            by_link: dict[tuple[str, int], float] = {}
            for name, field, link in wanted:
                if field in values and link is None:
                    whole[name] = values[field] * rung.factor
                elif field in values and link is not None:
                    by_link[name, link] = values[field] * rung.factor
            return {**whole, **self._sums.add_up(by_link)}, by_link
        return {}, {}


def active_links(calls: DeviceCalls, links: int) -> dict[int, bool]:
    """Return whether each link is up (one that sleeps is); those that do not tell are left out."""
    states = calls.fields((LINK_STATE, link) for link in range(links))
    found = {}
    for link in range(links):
        state = states.get((LINK_STATE, link))
        if state is None:
            state = calls.ask("nvmlDeviceGetNvLinkState", link, memo=link)
        if state is not None:
            found[link] = state != _DOWN
    return found
