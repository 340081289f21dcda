"""Neighbours that mean harm: a pod speaks for itself only, and nothing it writes does damage."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.agents import Samples, node_agent, parse, total
from support.procs import eventually
from support.ranks import RUN, append_steps, ring, step_record
from tailwatch.agents.node import senders
from tailwatch.agents.node.base import NodeConfig
from tailwatch.agents.node.collectors.steps import StepsCollector
from tailwatch.agents.node.inbox import MOST_NAMED
from tailwatch.agents.node.senders import BURST_RECORDS, MOST_ENTRIES, MOST_RINGS
from tailwatch.exposition import Snapshot
from tailwatch.records import PHASES, encode
from tailwatch.ring.layout import HEADER, HEADER_BYTES, MARK, RECORD_BYTES

FORK = multiprocessing.get_context("fork")


class Node:
    """A steps collector on `root/rings`, read in this process."""

    def __init__(self, root: Path) -> None:
        self.rings = root / "rings"
        self.rings.mkdir(exist_ok=True)
        (root / "log").mkdir(exist_ok=True)
        self.collector = StepsCollector(
            NodeConfig(node="node-0", rings=self.rings, log=root / "log")
        )
        (self.part,) = self.collector.discover()
        self.inbox: Any = self.part.inbox  # type: ignore[attr-defined]

    def pod(self, name: str) -> Path:
        """Return the directory of a pod."""
        path = self.rings / name
        path.mkdir(exist_ok=True)
        return path

    def read(self) -> Samples:
        """Look at all rings, and return what is exported."""
        self.inbox.scan()
        self.part.read()
        snapshot = Snapshot()
        self.collector.add_to(snapshot)
        return parse(snapshot.render())

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with at least these labels; None without any."""
        return total(self.read(), f"tailwatch_{name}", **labels)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node without ranks."""
    made = Node(tmp_path)
    yield made
    made.part.close()


@contextlib.contextmanager
def rank(directory: Path, number: int, last: int, **changes: Any) -> Iterator[Any]:
    """Run a rank in a process of its own, alive until the block ends; it has left `last` steps."""
    here, there = FORK.Pipe()

    def work() -> None:
        writer = ring(directory, number, **changes)
        fields = {"attempt": changes["attempt"]} if "attempt" in changes else {}
        append_steps(writer, number, 1, last, **fields)
        there.send("there")
        with contextlib.suppress(EOFError):
            there.recv()
        os._exit(0)

    process = FORK.Process(target=work, daemon=True)
    process.start()
    there.close()
    assert here.poll(30)
    here.recv()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        here.close()


def test_one_directory_a_pod_and_the_flat_layout(node: Node) -> None:
    """Rings are read from the directory itself and from one directory a pod."""
    append_steps(ring(node.rings, 0), 0, 1, 3)
    append_steps(ring(node.pod("pod-a"), 1), 1, 1, 4)
    assert node.value("node_rings") == 2
    assert node.value("rank_last_step", rank="0") == 3
    assert node.value("rank_last_step", rank="1") == 4
    assert node.value("node_records_total") == 7


def test_pod_cannot_speak_for_a_rank_of_a_living_one(node: Node) -> None:
    """A ring that claims another pod's rank is not read, and shows as a source that is down."""
    with rank(node.pod("victim"), 0, 5):
        assert node.value("rank_last_step", rank="0") == 5
        append_steps(ring(node.pod("evil"), 0, attempt=9), 0, 1, 77, attempt=9)
        assert node.value("rank_last_step", rank="0") == 5
        assert node.value("source_up", source=f"ring/evil/{RUN}.a0009.r00000.ring") == 0
        assert node.value("node_rings_broken") == 1
        assert node.value("node_records_total") == 5
        for _ in range(3):
            assert node.value("node_claims_refused_total") == 1


def test_pod_cannot_end_the_attempt_of_a_living_one(node: Node) -> None:
    """A later attempt that another pod claims leaves a living pod's ranks and files alone."""
    with rank(node.pod("victim"), 0, 5):
        append_steps(ring(node.pod("evil"), 1, attempt=9), 1, 1, 77, attempt=9)
        for _ in range(3):
            assert node.value("rank_last_step", rank="0") == 5
        assert (node.rings / "victim" / f"{RUN}.a0001.r00000.ring").exists()


def test_order_of_claims_outlives_the_agent(tmp_path: Path) -> None:
    """A new agent gives a rank to the pod that had it, whichever it sees first."""
    hidden = tmp_path / "hidden"
    for path in ("rings/victim", "rings/a-evil", "hidden"):
        (tmp_path / path).mkdir(parents=True)
    victim = tmp_path / "rings" / "victim"
    with rank(victim, 0, 5), rank(hidden, 0, 50, attempt=9):
        first = Node(tmp_path)
        assert first.value("rank_last_step", rank="0") == 5
        (evil,) = hidden.iterdir()
        evil.rename(tmp_path / "rings" / "a-evil" / evil.name)
        assert first.value("rank_last_step", rank="0") == 5
        first.part.close()
        again = Node(tmp_path)
        again.read()
        assert list(again.inbox.rings) == [f"victim/{RUN}.a0001.r00000.ring"]
        again.part.close()


def test_rank_that_starts_again_in_a_new_pod_is_taken_over(node: Node) -> None:
    """Once its process has ended, a rank may come back from another pod's directory."""
    with rank(node.pod("old"), 0, 5):
        assert node.value("rank_last_step", rank="0") == 5
    append_steps(ring(node.pod("new"), 0, attempt=2), 0, 6, 7, attempt=2)
    assert node.value("rank_last_step", rank="0") == 7
    samples = node.read()
    assert sum(name == "tailwatch_rank_last_step" for name, _ in samples) == 1


def test_first_owner_of_a_rank_gets_it_back(node: Node) -> None:
    """Who takes a rank while its pod starts again loses it when that is back, whoever runs on."""
    victim, evil = node.pod("victim"), node.pod("evil")
    with rank(victim, 0, 5):
        assert node.value("rank_last_step", rank="0") == 5
    with rank(evil, 0, 77, attempt=9):
        assert node.value("rank_last_step", rank="0") == 77
        with rank(victim, 0, 8, attempt=2):
            for _ in range(3):
                assert node.value("rank_last_step", rank="0") == 8
            assert node.value("source_up", source=f"ring/evil/{RUN}.a0009.r00000.ring") == 0
            assert node.value("node_claims_refused_total") == 1


def test_first_owner_is_known_after_a_restart(tmp_path: Path) -> None:
    """A new agent knows who was first, though the other one's ring is older."""
    victim, evil = tmp_path / "rings/victim", tmp_path / "rings/a-evil"
    victim.mkdir(parents=True)
    evil.mkdir()
    with rank(victim, 0, 5):
        first = Node(tmp_path)
        assert first.value("rank_last_step", rank="0") == 5
        first.part.close()
    with rank(evil, 0, 77, attempt=9), rank(victim, 0, 8, attempt=2):
        again = Node(tmp_path)
        assert again.value("rank_last_step", rank="0") == 8
        assert again.value("node_claims_refused_total") == 1
        again.part.close()


def test_pod_that_is_gone_has_no_claim_any_more(node: Node) -> None:
    """Once the directory of its pod is gone a rank belongs to who claims it next."""
    old, fresh = node.pod("old"), node.pod("new")
    with rank(old, 0, 5):
        assert node.value("rank_last_step", rank="0") == 5
    append_steps(ring(node.pod("other"), 1), 1, 1, 2)
    node.read()
    for file in old.iterdir():
        file.unlink()
    old.rmdir()
    node.read()
    with rank(fresh, 0, 7, attempt=2):
        assert node.value("rank_last_step", rank="0") == 7
        append_steps(ring(node.pod("old"), 0, attempt=3), 0, 1, 99, attempt=3)
        assert node.value("rank_last_step", rank="0") == 7


def test_record_that_speaks_for_another_rank_is_refused(node: Node) -> None:
    """What a record says of itself counts for nothing against its ring."""
    writer = ring(node.pod("evil"), 0)
    writer.append(encode(step_record(1, 9)))
    writer.append(encode(step_record(0, 9, run="other")))
    assert node.value("node_records_rejected_total", reason="identity") == 2
    assert node.value("rank_last_step") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"phases_ns": {"x" * 40: 1}},
        {"phases_ns": {f"p{n}": 1 for n in range(60)}},
        {"children_ns": {"mine": 1}},
        {"waits_ns": {f"g{n}": 1 for n in range(40)}},
        {"configuration": "c" * 500},
        {"role": "a\nb"},
    ],
)
def test_names_in_a_record_are_bounded(node: Node, changes: dict[str, Any]) -> None:
    """A record cannot invent label values."""
    ring(node.pod("evil"), 0).append(encode(step_record(0, 1, **changes)))
    assert node.value("node_records_rejected_total", reason="value") == 1
    assert node.value("rank_phase_seconds_total") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "r" * 150},
        {"run": "a\x07b"},
        {"rank": 7, "world_size": 4},
        {"rank": 1 << 24, "world_size": 1 << 25},
    ],
)
def test_header_that_cannot_be_true_is_refused(node: Node, changes: dict[str, Any]) -> None:
    """A ring whose header names an impossible run or rank is broken."""
    number = changes.pop("rank", 0)
    ring(node.pod("evil"), number, **changes)
    assert node.value("node_rings") == 0
    assert node.value("node_rings_broken") == 1


def test_ring_under_another_name_is_refused(node: Node) -> None:
    """A file name that the header does not bear out is broken."""
    writer = ring(node.pod("evil"), 0)
    writer.path.rename(writer.path.with_name(f"{RUN}.a0001.r00001.ring"))
    assert node.value("node_rings_broken") == 1


def test_links_and_devices_are_not_followed(node: Node, tmp_path: Path) -> None:
    """A link out of a pod's directory leads nowhere."""
    outside = ring(tmp_path, 0)
    evil = node.pod("evil")
    (evil / outside.path.name).symlink_to(outside.path)
    os.mkfifo(evil / "pipe.ring")
    (node.rings / "linked").symlink_to(tmp_path)
    assert node.value("node_rings") == 0
    assert node.value("node_rings_broken") == 2


def test_number_of_series_a_pod_can_make_is_bounded(node: Node) -> None:
    """Any number of rings and broken files gives a bounded number of series, and says so."""
    evil = node.pod("evil")
    writers = [
        ring(evil, n, world_size=300, record_slots=1, mark_slots=1) for n in range(MOST_RINGS + 5)
    ]
    for n, writer in enumerate(writers):
        writer.append(encode(step_record(n, 1, world_size=300, node="node-0")))
        writer.close()
    junk = node.pod("junk")
    for n in range(100):
        (junk / f"{n:03}{'x' * 180}.ring").write_bytes(b"no")
    append_steps(ring(node.pod("good"), 0, run="good"), 0, 1, 3, run="good")
    samples = node.read()
    assert node.value("node_rings_refused") == 5
    assert node.value("node_rings_broken") == 100
    assert node.value("rank_last_step", run="good") == 3
    down = [labels for name, labels in samples if name == "tailwatch_source_up"]
    assert len(down) == MOST_NAMED
    assert all(len(dict(labels)["source"]) < 300 for labels in down)
    assert sum(name == "tailwatch_rank_last_step" for name, _ in samples) == MOST_RINGS + 1


def test_crowded_directory_costs_only_its_owner(node: Node) -> None:
    """A pod with more files than are looked at hides its own rings and nobody else's."""
    evil = node.pod("evil")
    for n in range(MOST_ENTRIES + 50):
        (evil / f"{n}.x").touch()
    append_steps(ring(node.pod("good"), 1), 1, 1, 3)
    assert node.value("rank_last_step", rank="1") == 3


def test_flood_of_records_is_given_its_share(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that writes without end is read at a bounded rate; others are read in full."""
    # So slow a rate that a flood is one on the slowest machine, too.
    monkeypatch.setattr(senders, "RECORDS_A_SECOND", 100.0)
    flood = ring(node.pod("evil"), 0, record_slots=4096, node="node-0")
    good = ring(node.pod("good"), 1, node="node-0")
    payloads = [encode(step_record(0, n, node="node-0")) for n in range(1, 4097)]
    node.read()
    started = time.monotonic()
    for _ in range(8):
        for payload in payloads:
            flood.append(payload)
        node.read()
    append_steps(good, 1, 1, 50, node="node-0")
    assert node.value("rank_last_step", rank="1") == 50
    taken = node.value("node_records_total") or 0
    assert taken - 50 <= BURST_RECORDS + 100 * (time.monotonic() - started) + 64
    # Nothing goes without a word: what the flood overwrote itself counts as lost.
    monkeypatch.setattr(senders, "RECORDS_A_SECOND", 1e9)
    assert eventually(lambda: (node.value("node_records_lost_total") or 0) > 0)


def test_restart_on_more_than_a_share_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new agent that needs several goes for what the rings hold logs none of it again."""
    monkeypatch.setattr(senders, "BURST_RECORDS", 100)
    monkeypatch.setattr(senders, "RECORDS_A_SECOND", 2000.0)
    node = Node(tmp_path)
    writer = ring(node.pod("pod"), 0, record_slots=1024)
    append_steps(writer, 0, 1, 700)
    assert eventually(lambda: node.value("node_records_total") == 700)
    node.part.close()
    append_steps(writer, 0, 701, 750)
    again = Node(tmp_path)
    assert eventually(lambda: again.value("rank_last_step") == 750)
    assert again.value("node_records_total") == 50
    assert again.value("node_records_lost_total") == 0
    again.part.close()


def test_ring_of_holes_does_not_take_the_time_of_others(node: Node) -> None:
    """A big ring without a single whole slot is searched for a small part of the time only."""
    writer = ring(node.pod("evil"), 0, record_slots=65_000, mark_slots=1, node="node-0")
    path = writer.path
    writer.close()
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + MARK.size)
        file.write(b"\xff" * 16)
    node.read()
    started = time.process_time()
    for _ in range(50):
        node.read()
    assert time.process_time() - started < 5
    path.unlink()


def test_doorbell_rung_without_end_does_not_hold_the_agent(tmp_path: Path) -> None:
    """Empty, long and endless datagrams at the doorbell keep no record from being read."""
    with node_agent(tmp_path) as agent:
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bell.setblocking(False)
        bell.connect(str(tmp_path / "node-0.bell"))
        append_steps(ring(tmp_path / "rings", 0), 0, 1, 3)

        def rung_and_read() -> bool:
            for size in (0, 1, 60_000) * 50:
                with contextlib.suppress(BlockingIOError, OSError):
                    bell.send(bytes(size))
            return agent.value("tailwatch_rank_last_step") == 3

        assert eventually(rung_and_read)
        bell.close()


def damage(rng: random.Random, data: bytearray) -> bytes:
    """Return a ring file with something wrong in it."""
    how = rng.randrange(7)
    size = len(data)
    if how == 0:
        return bytes(data[: rng.randrange(size)])
    if how == 1:
        return rng.randbytes(rng.randrange(5000))
    if how == 2:
        return bytes(data) + rng.randbytes(rng.randrange(5000))
    if how == 3:
        HEADER.pack_into(
            data, 0, bytes(data[:8]), rng.choice([0, 1, 2, 65535]), 0,
            *(rng.choice([0, 1, 3, 8, 65536, 1 << 20, (1 << 32) - 1]) for _ in range(3)),
            *(rng.choice([0, 1, 2, 1 << 31]) for _ in range(4)),
        )  # fmt: skip
        return bytes(data)
    if how == 4:
        at = rng.randrange(HEADER.size, 200)
        data[at : at + 8] = rng.randbytes(8)
        return bytes(data)
    if how == 5:
        slot = HEADER_BYTES + 4 * MARK.size + rng.randrange(8) * RECORD_BYTES
        data[slot : slot + 16] = rng.randbytes(16)
        return bytes(data)
    for _ in range(rng.randrange(1, 30)):
        at = rng.randrange(size)
        data[at] = rng.randrange(256)
    return bytes(data)


# What a record or a header may say that is whole and cannot be true.
LIES: tuple[dict[str, Any], ...] = (
    {"rank": 3}, {"run": "good"}, {"attempt": 2}, {"node": "elsewhere"}, {"world_size": 3},
    {"phases_ns": {"mine": 10**9}}, {"phases_ns": {"p" * 400: 1}}, {"children_ns": {"mine": 1}},
    {"phases_ns": {"rollout_generate": 10**18}}, {"waits_ns": {f"g{n}": 1 for n in range(40)}},
    {"role": "a\nb"}, {"configuration": "c" * 500}, {"step": -1}, {"peak_memory_bytes": -1},
    {"duration_ns": -1}, {"start_ns": 0},
)  # fmt: skip
HEADER_LIES: tuple[dict[str, Any], ...] = (
    {"rank": 50}, {"run": "r" * 150}, {"run": "a\x07b"}, {"rank": 1 << 24, "world_size": 1 << 25}
)  # fmt: skip


class Good:
    """A rank of another pod, in a process of its own, that leaves a step whenever it is told to."""

    def __init__(self, directory: Path) -> None:
        here, there = FORK.Pipe()

        def work() -> None:
            writer = ring(directory, 3, run="good", node="node-0")
            while step := there.recv():
                append_steps(writer, 3, step, step, run="good", node="node-0")
                there.send(step)
            os._exit(0)

        self._process = FORK.Process(target=work, daemon=True)
        self._process.start()
        self._pipe = here

    def step(self, number: int) -> None:
        """Leave a step."""
        self._pipe.send(number)
        assert self._pipe.recv() == number

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()


def open_files() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def fuzz(root: Path, inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read damaged rings and records; fail on any exception, false series or growth."""
    # All of it is read: what a sender's share leaves out would be no input.
    monkeypatch.setattr(senders, "RECORDS_A_SECOND", 1e9)
    rng = random.Random(7)
    for pod in ("good", "evil"):
        (root / "rings" / pod).mkdir(parents=True)
    good = Good(root / "rings/good")
    node = Node(root)
    sample_path = root / "sample"
    sample_path.mkdir()
    writer = ring(sample_path, 0, mark_slots=4, record_slots=8)
    append_steps(writer, 0, 1, 11)
    whole = writer.path.read_bytes()
    name = writer.path.name
    writer.close()
    evil = node.pod("evil")
    record = encode(step_record(7, 5, run="evil", world_size=9, node="node-0"))
    step = done = base = files = noise = lies = 0
    good.step(1)
    node.read()
    tracemalloc.start()
    try:
        while done < inputs:
            path = evil / name
            content = damage(rng, bytearray(whole))
            path.write_bytes(content)
            for other in range(rng.randrange(3)):
                (evil / f"{RUN}.a0001.r0000{other + 1}.ring").write_bytes(content)
            # In the name of the good rank, of whatever attempt.
            attempt = 1 + step % 9
            forged = ring(evil, 3, run="good", attempt=attempt, node="node-0")
            append_steps(forged, 3, 10**6, 10**6, run="good", attempt=attempt, node="node-0")
            forged.close()
            lie = {"run": "evil", "rank": 8, "world_size": 9, **rng.choice(HEADER_LIES)}
            lying = ring(evil, lie.pop("rank"), **lie, node="node-0")
            lying.close()
            live = ring(evil, 7, run="evil", world_size=9, record_slots=64, node="node-0")
            node.inbox.scan()
            node.part.read()
            # Cut or grown while it is open.
            with contextlib.suppress(OSError):
                os.truncate(path, rng.randrange(len(whole) * 2))
            node.part.read()
            for _ in range(96):
                at = rng.randrange(len(record))
                damaged = record[:at] + rng.randbytes(rng.randrange(4)) + record[at + 1 :]
                live.append(damaged[: rng.choice([2, 40, 400, 2000])])
                noise += 1
                if noise % 8 == 0:
                    lie = {"run": "evil", "world_size": 9, "node": "node-0", **rng.choice(LIES)}
                    live.append(encode(step_record(lie.pop("rank", 7), lie.pop("step", 5), **lie)))
                    lies += 1
                if noise % 32 == 0:
                    node.part.read()
            live.close()
            for leavings in (live.path, forged.path, lying.path):
                leavings.unlink()
            done += 112
            step += 1
            good.step(step)
            node.inbox.scan()
            node.part.read()
            if step % 16 == 0:
                samples = node.read()
                believable(samples)
                said = [v for (n, ls), v in samples.items() if n == "tailwatch_rank_last_step"
                        and dict(ls)["run"] == "good"]  # fmt: skip
                assert said == [step]
            if step == 64:
                base, files = tracemalloc.get_traced_memory()[0], open_files()
        assert node.inbox.claims_refused == step
        # Every record was looked at: it was refused, or says of its rank what a rank may say.
        rejected = node.inbox.rejected
        assert rejected["identity"] + rejected["value"] >= lies
        assert rejected["unreadable"] > noise / 2
        assert node.inbox.records + sum(rejected.values()) >= noise + lies
        assert tracemalloc.get_traced_memory()[0] - base < 4 << 20
        assert abs(open_files() - files) < 16
    finally:
        tracemalloc.stop()
        node.part.close()
        good.close()


def believable(samples: Samples) -> None:
    """Fail when a damaged ring or record made a series that nobody meant."""
    assert len(samples) < 300
    for name, pairs in samples:
        labels = dict(pairs)
        assert all(len(text) < 300 and text.isprintable() for text in labels.values())
        if name.startswith("tailwatch_rank_"):
            assert labels["run"] in ("good", RUN, "evil")
            assert labels["rank"] in ("0", "1", "2", "3", "7")
            assert labels.get("phase", PHASES[0]) in PHASES


def test_nonsense_neither_breaks_nor_grows_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 damaged rings and records: no exception, no false series, a good rank unharmed."""
    fuzz(tmp_path, 10_000, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with 1,000,000 inputs."""
    fuzz(tmp_path, 1_000_000, monkeypatch)


def test_identity_is_never_in_the_payload() -> None:
    """There is no field of a record that names a pod."""
    fields = msgspec.structs.fields(step_record())
    assert not any("pod" in field.name for field in fields)
