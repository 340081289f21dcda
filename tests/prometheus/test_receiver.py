"""The webhook receiver: what it writes down, and what it refuses."""

from __future__ import annotations

import http.client
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.procs import eventually
from tailwatch.notices import read_deliveries
from tailwatch.prometheus.receiver import MAX_BODY_BYTES, Receiver, start_receiver


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A running receiver."""
    running = start_receiver(
        tmp_path / "webhook.jsonl", directory=tmp_path / "receiver", token=secrets.token_hex(8)
    )
    yield running
    running.stop()


def connect(receiver: Receiver) -> http.client.HTTPConnection:
    """Return a connection."""
    return http.client.HTTPConnection(receiver.url.split("/")[2], timeout=20)


def post(receiver: Receiver, body: bytes, **headers: str) -> int:
    """POST once and return the status."""
    connection = connect(receiver)
    connection.request("POST", "/", body, {k.replace("_", "-"): v for k, v in headers.items()})
    status = connection.getresponse().status
    connection.close()
    return status


def bodies(receiver: Receiver) -> list[str]:
    """Return what was written down."""
    return [delivery.body for delivery in read_deliveries(receiver.log)]


def test_bodies_are_kept_as_they_came(receiver: Receiver) -> None:
    """A body is written down before the answer, undecoded, with the time; bytes stay visible."""
    before = time.time_ns()
    assert post(receiver, b'{"a":\n 1}') == 200
    (delivery,) = read_deliveries(receiver.log)
    assert delivery.body == '{"a":\n 1}'
    assert before < delivery.received_ns < time.time_ns()
    assert post(receiver, "späť \u2028".encode()) == 200
    assert post(receiver, b"\xff\x00") == 200
    assert post(receiver, b"") == 200
    assert bodies(receiver)[1:] == ["späť \u2028", "\\xff\x00", ""]


def test_one_connection_serves_many(receiver: Receiver) -> None:
    """A connection is kept for the next notification."""
    connection = connect(receiver)
    for body in (b"1", b"2"):
        connection.request("POST", "/any/path", body)
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.request("GET", "/-/healthy")
    response = connection.getresponse()
    response.read()
    assert response.status == 200
    connection.request("GET", "/")
    assert connection.getresponse().status == 404
    connection.close()
    assert bodies(receiver) == ["1", "2"]


def test_what_is_refused(receiver: Receiver) -> None:
    """Bodies that are too long, without a length or with a wrong one are refused unread."""
    assert post(receiver, b"x", Content_Length=str(MAX_BODY_BYTES + 1)) == 413
    assert post(receiver, b"x", Content_Length="9" * 5000) == 413
    assert post(receiver, b"x", Content_Length="-1") == 400
    assert post(receiver, b"0\r\n\r\n", Transfer_Encoding="chunked") == 411
    assert post(receiver, b"x" * MAX_BODY_BYTES) == 200
    assert [len(body) for body in bodies(receiver)] == [MAX_BODY_BYTES]


def test_nonsense_does_not_end_it(receiver: Receiver) -> None:
    """Garbage, a client that hangs up in the middle and one that stays silent cost nothing."""
    host, port = receiver.url.split("/")[2].split(":")
    silent = socket.create_connection((host, int(port)))
    for garbage in (b"\x16\x03\x01\xff\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nab"):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(garbage)
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
    assert post(receiver, b"still there") == 200
    silent.close()
    assert bodies(receiver) == ["still there"]
    assert "Traceback" not in receiver.process.output()


def test_full_disk(receiver: Receiver) -> None:
    """What does not fit is taken back and answered 503; afterwards all goes on."""
    assert post(receiver, b"first") == 200
    before = receiver.log.read_bytes()
    # Room for a part of the line, then for nothing at all, not even for its own complaint.
    for room in (len(before) + 30, 0):
        resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE, (room, 1 << 30))
        assert post(receiver, b"second " * 100) == 503
        assert receiver.log.read_bytes() == before
    resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    assert post(receiver, b"third") == 200
    assert bodies(receiver) == ["first", "third"]


def test_after_a_kill(tmp_path: Path, receiver: Receiver) -> None:
    """What was answered 200 survives kill -9, and a line cut short spoils only itself."""
    assert post(receiver, b"kept") == 200
    os.kill(receiver.process.pid, signal.SIGKILL)
    assert receiver.process.wait(20) == -signal.SIGKILL
    with receiver.log.open("ab") as file:
        file.write(b'{"received_ns": 1, "bo')
    again = start_receiver(receiver.log, directory=tmp_path / "again", token="t")
    assert post(again, b"next") == 200
    assert bodies(again) == ["kept", "next"]
    again.stop()


def test_port_taken_and_no_place_to_write(tmp_path: Path) -> None:
    """A receiver that cannot listen or cannot write says so in one line and ends with 2."""

    def attempt(listen: str, log: Path) -> str:
        argv = [sys.executable, "-m", "tailwatch.prometheus.receiver"]
        done = subprocess.run(
            [*argv, "--listen", listen, "--log", str(log)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 2
        return done.stderr

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        message = attempt(address, tmp_path / "log")
    assert message == f"receiver: cannot listen on {address}: Address already in use\n"
    missing = tmp_path / "no" / "log"
    assert attempt("127.0.0.1:0", missing).startswith(f"receiver: cannot open {missing}: ")
    assert "expected HOST:PORT" in attempt("nowhere", tmp_path / "log")


def test_it_is_found_by_the_token(tmp_path: Path) -> None:
    """Its output file names where it listens only once it does."""
    token = secrets.token_hex(8)
    receiver = start_receiver(tmp_path / "log", directory=tmp_path / "r", token=token)
    assert receiver.url == f"http://{(tmp_path / 'r' / 'receiver.address').read_text().strip()}/"
    receiver.stop()
    assert eventually(lambda: not receiver.process.alive())
