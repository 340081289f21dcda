"""Waiting for parts to come up, and the message when they do not."""

from __future__ import annotations

import http.client
import socket
import sys
from pathlib import Path

import pytest

from support.procs import SLEEPER
from tailwatch.processes import (
    Process,
    StartError,
    free_port,
    spawn,
    start_listening,
    wait_until,
)

SERVER = """
import http.server, sys
try:
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.BaseHTTPRequestHandler
        ).serve_forever()
except OSError as error:
    sys.exit(f"cannot listen: {error.strerror.lower()}")
"""


def serve(log: Path, port: int) -> Process:
    """Start a small web server."""
    return spawn([sys.executable, "-c", SERVER, str(port)], log=log, token="t", name="web")


def answers(port: int) -> bool:
    """Whether anybody speaks HTTP there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status > 0
    except OSError:
        return False
    finally:
        connection.close()


def test_returns_what_the_predicate_found() -> None:
    """The first true answer is returned."""
    answers = iter([0, 0, 5])
    assert wait_until(lambda: next(answers), 20, "five", interval=0) == 5


def test_names_a_process_that_ends(tmp_path: Path) -> None:
    """The message names the part that ended, how, its log and the log's last line."""
    log = tmp_path / "part.log"
    source = "print('first'); raise SystemExit('no such table')"
    part = spawn([sys.executable, "-S", "-c", source], log=log, token="t", name="part")
    with pytest.raises(StartError) as caught:
        wait_until(lambda: False, 20, "it is ready", processes=[part])
    assert str(caught.value) == (
        f"part ended (exit status 1) while waiting until it is ready; {log}: no such table"
    )


def test_names_what_was_waited_for(tmp_path: Path) -> None:
    """After the deadline the message names what did not come and every part's log."""
    part = spawn(SLEEPER, log=tmp_path / "part.log", token="t", name="part")
    with pytest.raises(StartError, match=r"waited 0\.1 s in vain until it is ready; part: .*empty"):
        wait_until(lambda: False, 0.1, "it is ready", processes=[part])
    part.terminate(5)


def test_starts_on_a_free_port(tmp_path: Path) -> None:
    """A server is started on a port of its own and is ready when the call returns."""
    process, port = start_listening(lambda p: serve(tmp_path / "log", p), answers, "web is ready")
    assert answers(port)
    process.terminate(5)


def test_another_port_when_one_was_taken(tmp_path: Path) -> None:
    """When somebody takes the port in between, another one is tried."""
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        taken = thief.getsockname()[1]
        tried: list[int] = []

        def launch(port: int) -> Process:
            tried.append(port)
            return serve(tmp_path / "log", taken if len(tried) == 1 else port)

        process, port = start_listening(launch, lambda _: True, "web is ready")
        assert len(tried) == 2
        assert port == tried[1]
        process.terminate(5)


def test_the_answer_of_somebody_else_does_not_count(tmp_path: Path) -> None:
    """On a given port that is taken the start fails, even if who holds it answers as expected."""
    first, port = start_listening(lambda p: serve(tmp_path / "1", p), answers, "web is ready")
    with pytest.raises(StartError, match="address already in use"):
        start_listening(lambda p: serve(tmp_path / "2", p), answers, "web is ready", port=port)
    first.terminate(5)


def test_free_ports_can_be_bound() -> None:
    """A free port can be bound."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
