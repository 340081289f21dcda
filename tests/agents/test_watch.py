"""What runs the sources: health, backing off, pausing, and counters that never fall unseen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import Samples, parse
from support.procs import eventually
from support.sources import value
from tailwatch.agents.node.base import (
    NeedsNewProcess,
    NodeConfig,
    Part,
    ResetWatch,
    SourceError,
)
from tailwatch.agents.node.watch import Watch
from tailwatch.exposition import Snapshot


class Counter:
    """A part with one number; what its read does can be changed."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.resets = ResetWatch()
        self.reads = 0
        self.closed = 0
        self.number = 0
        self.error: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()
        self.threads: set[int] = set()
        self.inside = 0
        self._seen = 0

    def read(self) -> None:
        self.inside += 1
        assert self.inside == 1, "read twice at the same time"
        self.reads += 1
        self.threads.add(threading.get_ident())
        self.go_on.wait()
        self.inside -= 1
        if self.error is not None:
            raise self.error
        self._seen = self.number
        self.resets.see({"number": self.number})

    def add_to(self, snapshot: Snapshot) -> None:
        snapshot.add(
            "tailwatch_host_network_received_bytes_total",
            self._seen,
            node="n",
            interface=self.key,
        )

    def close(self) -> None:
        self.closed += 1


class Counters:
    """A collector of such parts, under the name of one that holds devices."""

    name: ClassVar[str] = "efa"
    interval: ClassVar[float] = 0.05
    deadline: ClassVar[float] = 0.2

    def __init__(self, config: NodeConfig) -> None:
        self.parts = made.get(config.node, [])
        self.closed = 0

    def discover(self) -> Sequence[Part]:
        return self.parts

    def add_to(self, snapshot: Snapshot) -> None:
        snapshot.add("tailwatch_efa_devices", len(self.parts), node="n")

    def close(self) -> None:
        self.closed += 1


made: dict[str, list[Counter]] = {}


@pytest.fixture
def parts() -> Iterator[list[Counter]]:
    """Three parts."""
    made["n"] = [Counter(key) for key in ("a", "b", "c")]
    yield made["n"]
    for part in made.pop("n"):
        part.go_on.set()


@pytest.fixture
def watch(parts: list[Counter]) -> Iterator[Watch]:
    """A running watch on them."""
    config = NodeConfig(node="n")
    made_watch = Watch([Counters(config)], config, stale_floor=0.3)
    made_watch.start()
    assert eventually(made_watch.settled)
    yield made_watch
    made_watch.close()


def samples(watch: Watch) -> Samples:
    """Return what it shows now."""
    return parse(watch.render().render())


def number(watch: Watch, key: str) -> float | None:
    """Return the number a part shows."""
    return value(samples(watch), "tailwatch_host_network_received_bytes_total", interface=key)


def test_one_thread_reads_all_that_is_well(watch: Watch, parts: list[Counter]) -> None:
    """Parts that answer share one thread; each is read again and again."""
    assert eventually(lambda: all(part.reads > 5 for part in parts))
    assert len(set.union(*(part.threads for part in parts))) == 1


def test_hanging_part_is_left_alone(watch: Watch, parts: list[Counter]) -> None:
    """One that hangs is not read a second time, and the others are read as before."""
    parts[1].go_on.clear()
    assert eventually(lambda: value(samples(watch), "tailwatch_source_up", device="b") == 0)
    hanging = parts[1].reads
    others = parts[0].reads + parts[2].reads
    assert eventually(lambda: parts[0].reads + parts[2].reads > others + 10)
    assert parts[1].reads == hanging
    assert eventually(lambda: number(watch, "b") is None)
    assert number(watch, "a") == number(watch, "c") == 0
    found = samples(watch)
    assert value(found, "tailwatch_source_errors_total", device="b", code="hung") == 1
    parts[1].number = 7
    parts[1].go_on.set()
    assert eventually(lambda: number(watch, "b") == 7)
    assert value(samples(watch), "tailwatch_source_up", device="b") == 1


def test_failing_part_is_read_less_and_less(watch: Watch, parts: list[Counter]) -> None:
    """After failures the pauses grow, so that the others are read far more often."""
    parts[0].error = SourceError("broken", "it is broken")
    assert eventually(lambda: value(samples(watch), "tailwatch_source_up", device="a") == 0)
    before = parts[0].reads, parts[1].reads
    assert eventually(lambda: parts[1].reads >= before[1] + 31)
    assert parts[0].reads - before[0] <= 6
    assert value(samples(watch), "tailwatch_source_errors_total", device="a", code="broken")
    parts[0].error = None
    assert eventually(lambda: value(samples(watch), "tailwatch_source_up", device="a") == 1)


def test_mistake_in_a_part_costs_only_itself(watch: Watch, parts: list[Counter]) -> None:
    """An exception nobody expected is the code `internal` of that part and of no other."""
    parts[0].error = ZeroDivisionError("a mistake")
    name = "tailwatch_source_errors_total"
    assert eventually(lambda: value(samples(watch), name, device="a", code="internal"))
    assert value(samples(watch), "tailwatch_source_up", device="b") == 1


def test_gone_and_back(watch: Watch, parts: list[Counter]) -> None:
    """A part that is no longer found is down with the code `gone`, until it is found again."""
    lost = parts.pop()
    watch.rediscover()
    name = "tailwatch_source_errors_total"
    assert eventually(lambda: value(samples(watch), name, device="c", code="gone") == 1)
    assert value(samples(watch), "tailwatch_source_up", device="c") == 0
    assert number(watch, "c") is None
    parts.append(lost)
    watch.rediscover()
    assert eventually(lambda: value(samples(watch), "tailwatch_source_up", device="c") == 1)
    assert number(watch, "c") == 0


def test_only_a_new_process_helps(watch: Watch, parts: list[Counter]) -> None:
    """A read that says so is told to whoever runs the watch."""
    assert watch.fatal == ""
    parts[0].error = NeedsNewProcess("version", "the driver was exchanged")
    assert eventually(lambda: watch.fatal == "source efa: the driver was exchanged")


def test_pause_releases_and_resume_begins_anew(watch: Watch, parts: list[Counter]) -> None:
    """Paused, every part is closed and none is read; resumed, all are read again."""
    watch.pause()
    reads = [part.reads for part in parts]
    assert [part.closed for part in parts] == [1, 1, 1]
    found = samples(watch)
    assert value(found, "tailwatch_node_paused") == 1
    assert value(found, "tailwatch_source_up", device="a") is None
    assert not watch.readiness().ready
    assert "paused" in watch.readiness().lines[-1]
    time.sleep(0.2)
    assert [part.reads for part in parts] == reads
    watch.resume()
    assert eventually(lambda: value(samples(watch), "tailwatch_source_up", device="a") == 1)
    assert value(samples(watch), "tailwatch_node_paused") == 0
    assert eventually(lambda: watch.readiness().ready)


def test_close_does_not_wait_for_what_hangs(watch: Watch, parts: list[Counter]) -> None:
    """With a read that never returns closing takes its time-out; the others are closed."""
    parts[0].go_on.clear()
    assert eventually(lambda: value(samples(watch), "tailwatch_source_up", device="a") == 0)
    started = time.monotonic()
    watch.close(timeout=0.5)
    assert time.monotonic() - started < 5
    assert [part.closed for part in parts] == [0, 1, 1]


def test_readiness_names_what_is_sick(watch: Watch, parts: list[Counter]) -> None:
    """Ready while most parts are fresh, each that is not named with its reason."""
    assert watch.readiness().ready
    parts[0].error = SourceError("broken", "it is broken")
    assert eventually(lambda: "a fails: it is broken" in watch.readiness().lines[0])
    assert watch.readiness().ready
    parts[1].error = parts[0].error
    assert eventually(lambda: not watch.readiness().ready)


@settings(max_examples=200)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 1 << 64)), max_size=20))
def test_no_counter_falls_unseen(reads: list[dict[str, int]]) -> None:
    """Whatever is read, a value below the one before comes with a reset, and nothing else does."""
    watch = ResetWatch()
    last: dict[str, int] = {}
    for read in reads:
        fell = any(count < last.get(name, 0) for name, count in read.items())
        before = watch.count
        watch.see(read)
        assert watch.count == before + fell
        last |= read


def test_memory_of_names_that_come_and_go() -> None:
    """Names that are not seen again are forgotten, so that a node may run for years."""
    watch = ResetWatch()
    for index in range(10000):
        watch.see({f"pod{index}": index})
    assert len(vars(watch)["_last"]) < 200
