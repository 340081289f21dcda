"""The node agent as a process: what it serves, and what its end and its return cost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.agents import Agent, node_agent
from support.procs import eventually
from support.ranks import append_steps, event, ring, step_record
from tailwatch.agents.server import CURSOR_HEADER
from tailwatch.records import StepRecord, decode, encode
from tailwatch.ring import MarkCode
from tailwatch.steplog import payloads, read_steplog


def fetch(agent: Agent, cursor: int = 0, limit: int = 1 << 20) -> tuple[list[bytes], int]:
    """Return the payloads from a cursor on, and the next cursor."""
    status, body, headers = agent.get(f"/steps?cursor={cursor}&limit={limit}")
    assert status == 200, body
    assert headers["Content-Type"] == "application/octet-stream"
    return [bytes(p) for _, p in payloads(body)], int(headers[CURSOR_HEADER])


def test_steps_are_served_as_they_were_written(tmp_path: Path) -> None:
    """Records appear on /steps byte for byte, in order, and a cursor goes on behind them."""
    with node_agent(tmp_path) as agent:
        writer = ring(tmp_path / "rings", 0, doorbell=tmp_path / "node-0.bell")
        written = append_steps(writer, 0, 1, 50)
        assert eventually(lambda: len(fetch(agent)[0]) == 50)
        assert fetch(agent)[0] == written
        _, cursor = fetch(agent)
        assert fetch(agent, cursor) == ([], cursor)
        written = append_steps(writer, 0, 51, 52)
        assert eventually(lambda: fetch(agent, cursor)[0] == written)


def test_small_limits_still_make_progress(tmp_path: Path) -> None:
    """With any limit, even 0, a reader gets at least one record and in the end all of them."""
    with node_agent(tmp_path) as agent:
        writer = ring(tmp_path / "rings", 0)
        written = append_steps(writer, 0, 1, 20)
        assert eventually(lambda: len(fetch(agent)[0]) == 20)
        for limit in (0, 1, 500, 1000):
            found: list[bytes] = []
            cursor = 0
            while part := fetch(agent, cursor, limit)[0]:
                cursor = fetch(agent, cursor, limit)[1]
                found += part
            assert found == written


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("cursor=999999", 416),
        ("cursor=3", 416),
        ("cursor=-1", 400),
        ("cursor=x", 400),
        ("cursor=0&limit=x", 400),
        ("cursor=" + "9" * 30, 400),
        ("", 200),
    ],
)
def test_impossible_cursor_is_said(tmp_path: Path, query: str, status: int) -> None:
    """A cursor behind the end or inside a record is 416, a malformed one 400, each with a line."""
    with node_agent(tmp_path) as agent:
        append_steps(ring(tmp_path / "rings", 0), 0, 1, 3)
        assert eventually(lambda: len(fetch(agent)[0]) == 3)
        found, body, _ = agent.get(f"/steps?{query}")
        assert found == status
        assert status == 200 or body.decode().count("\n") == 1


def test_metrics_tell_of_each_rank(tmp_path: Path) -> None:
    """Records, losses, last step, phases, memory and age of the newest mark are on /metrics."""
    with node_agent(tmp_path) as agent:
        writer = ring(tmp_path / "rings", 1)
        writer.mark(MarkCode.FORWARD_BACKWARD)
        append_steps(writer, 1, 1, 10)
        assert eventually(lambda: agent.value("tailwatch_rank_last_step") == 10)
        assert agent.value("tailwatch_node_records_total", node="node-0") == 10
        assert agent.value("tailwatch_node_records_lost_total", node="node-0") == 0
        assert agent.value("tailwatch_node_rings") == 1
        rank = {"run": "run-1", "node": "node-0", "rank": "1"}
        age = agent.value("tailwatch_rank_last_mark_age_seconds", **rank)
        assert age is not None
        assert 0 <= age < 60
        spent = agent.value("tailwatch_rank_phase_seconds_total", phase="forward_backward", **rank)
        assert spent == pytest.approx(0.6)
        assert agent.value("tailwatch_rank_peak_memory_bytes", **rank) == 1 << 20
        assert agent.value("tailwatch_source_up", source="steps") == 1


def test_dead_rank_grows_old(tmp_path: Path) -> None:
    """The age of the newest mark grows while a rank leaves none."""
    with node_agent(tmp_path) as agent:
        ring(tmp_path / "rings", 0).mark(MarkCode.STEP)
        name = "tailwatch_rank_last_mark_age_seconds"
        assert eventually(lambda: agent.value(name) is not None)
        first = agent.value(name) or 0.0
        assert eventually(lambda: (agent.value(name) or 0.0) > first + 0.5)


def test_newest_attempt_owns_the_series(tmp_path: Path) -> None:
    """After a restart of the job a rank has one series, that of its newest attempt."""
    with node_agent(tmp_path) as agent:
        append_steps(ring(tmp_path / "rings", 0), 0, 1, 9)
        assert eventually(lambda: agent.value("tailwatch_rank_last_step") == 9)
        append_steps(ring(tmp_path / "rings", 0, attempt=2), 0, 5, 6, attempt=2)
        assert eventually(lambda: agent.value("tailwatch_rank_last_step") == 6)
        assert agent.value("tailwatch_node_rings") == 2


def test_broken_ring_is_a_source_that_is_down(tmp_path: Path) -> None:
    """A file that is no ring shows as a source of its own with up 0."""
    with node_agent(tmp_path) as agent:
        (tmp_path / "rings" / "bad.ring").write_bytes(b"no")
        assert eventually(lambda: agent.value("tailwatch_source_up", source="ring/bad.ring") == 0)
        assert agent.value("tailwatch_source_up", source="steps") == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_restarted_agent_repeats_nothing(tmp_path: Path, how: signal.Signals) -> None:
    """Killed or ended at any moment and started again, the log holds each record once."""
    (tmp_path / "rings").mkdir()
    writer = ring(tmp_path / "rings", 0, record_slots=4096, doorbell=tmp_path / "node-0.bell")
    step = 0
    for _ in range(4):
        with node_agent(tmp_path) as agent:
            for _ in range(5):
                append_steps(writer, 0, step + 1, step + 40)
                step += 40
                time.sleep(0.01)
            agent.kill(how)
    with node_agent(tmp_path) as agent:
        assert eventually(lambda: len(fetch(agent)[0]) == step)
        assert agent.value("tailwatch_node_records_lost_total") == 0
    records = read_steplog(tmp_path / "log" / "node-0.steplog")
    assert [r.step for r in records if isinstance(r, StepRecord)] == list(range(1, step + 1))


def test_sigterm_ends_it_soon(tmp_path: Path) -> None:
    """SIGTERM ends the agent with code 0 soon, its last records logged and its socket gone."""
    with node_agent(tmp_path) as agent:
        writer = ring(tmp_path / "rings", 0)
        assert eventually(lambda: agent.value("tailwatch_node_rings") == 1)
        writer.append(encode(event("finish")))
        started = time.monotonic()
        assert agent.kill(signal.SIGTERM) == 0
        assert time.monotonic() - started < 20
        assert not (tmp_path / "node-0.bell").exists()
    _, payload = next(payloads((tmp_path / "log" / "node-0.steplog").read_bytes()))
    assert decode(payload) == event("finish")


def test_stopped_agent_does_not_hold_the_rank(tmp_path: Path) -> None:
    """A rank goes on at full speed while its agent is stopped, and nothing is missing after."""
    with node_agent(tmp_path) as agent:
        writer = ring(tmp_path / "rings", 0, record_slots=4096, doorbell=tmp_path / "node-0.bell")
        os.kill(agent.process.pid, signal.SIGSTOP)
        started = time.monotonic()
        append_steps(writer, 0, 1, 2000)
        assert time.monotonic() - started < 10
        os.kill(agent.process.pid, signal.SIGCONT)
        assert eventually(lambda: agent.value("tailwatch_node_records_total") == 2000)
        assert agent.value("tailwatch_node_records_lost_total") == 0


def test_doorbell_that_is_full_loses_no_record(tmp_path: Path) -> None:
    """How many rings the kernel queues is told at start; beyond that the ring has all there is."""
    queued = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    with node_agent(tmp_path) as agent:
        assert f"the kernel queues {queued} rings" in agent.errors.read_text()
        rings = 20 * (queued + 1)
        writer = ring(tmp_path / "rings", 0, doorbell=tmp_path / "node-0.bell", record_slots=rings)
        agent.process.send_signal(signal.SIGSTOP)
        try:
            written = append_steps(writer, 0, 1, rings)
        finally:
            agent.process.send_signal(signal.SIGCONT)
        assert eventually(lambda: agent.value("tailwatch_node_records_total") == rings)
        assert agent.value("tailwatch_node_records_lost_total") == 0
        assert fetch(agent, limit=1 << 22)[0] == written


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--listen": "127.0.0.1"}, "--listen: '127.0.0.1', expected host:port"),
        ({"--listen": "203.0.113.1:1"}, "--listen: 203.0.113.1:1"),
        ({"--node": "a/b"}, "--node: 'a/b'"),
        ({"--rings": "/proc/nowhere"}, "--rings: /proc/nowhere"),
        ({"--log": "/proc/nowhere"}, "--log: /proc/nowhere"),
        ({"--doorbell": "/proc/nowhere/bell"}, "--doorbell: /proc/nowhere/bell"),
        ({"--doorbell": "/tmp/" + "x" * 120}, "at most 107 bytes"),
    ],
)
def test_bad_usage_is_one_line(tmp_path: Path, change: dict[str, str], said: str) -> None:
    """Impossible flags end with code 2 and one line that names the flag."""
    flags = {
        "--node": "node-0",
        "--rings": str(tmp_path / "rings"),
        "--log": str(tmp_path / "log"),
        "--doorbell": str(tmp_path / "bell"),
        **change,
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailwatch.agents.node.main"),
            *(word for pair in flags.items() for word in pair),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_second_agent_on_the_same_doorbell_is_refused(tmp_path: Path) -> None:
    """Two agents never share a doorbell, and a dead one's socket is taken over."""
    with (
        node_agent(tmp_path),
        pytest.raises(AssertionError, match="another agent listens there"),
        node_agent(tmp_path),
    ):
        pass
    assert (tmp_path / "node-0.bell").exists()
    with node_agent(tmp_path) as agent:
        append_steps(ring(tmp_path / "rings", 0), 0, 1, 1)
        assert eventually(lambda: fetch(agent)[0] == [encode(step_record(0, 1))])


def test_node_agent_is_light() -> None:
    """The node agent loads neither numpy nor torch nor a client library."""
    code = (
        "import sys, tailwatch.agents.node.main;"
        "print([m for m in ('numpy', 'torch', 'typer', 'httpx', 'prometheus_client')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=True,
    )
    assert done.stdout.strip() == "[]"
