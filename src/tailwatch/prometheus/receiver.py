"""The webhook receiver: writes down what Alertmanager sends (`python -m ...prometheus.receiver`).

Contract: a process of its own, so that what was delivered does not rest on the word of whoever
runs the game day. Each POST body is appended, undecoded, as one `Delivery` line and fsynced
*before* the answer 200. What is not wholly on disk is taken back and answered 503, and Alertmanager
sends it again. GET /-/healthy answers 200.

    400 a length that is none   411 no length   413 over 4 MiB   503 cannot be written

Cost: one fsync a notification.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import socketserver
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

import msgspec

from tailwatch.evidence import Delivery
from tailwatch.files import write_durably
from tailwatch.processes import Process, spawn, wait_until

MAX_BODY_BYTES = 4 * 1024 * 1024
READ_SECONDS = 10


class DeliveryLog:
    """The file of deliveries; this process is its only writer."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            # A receiver was killed in the middle of a line; the next one must not join it.
            os.write(self._fd, b"\n")

    def append(self, delivery: Delivery) -> None:
        """Write one line and fsync it; on an error the file is as it was before.

        Raises:
            OSError: the disk is full, or gone.
        """
        line = memoryview(msgspec.json.encode(delivery) + b"\n")
        with self._lock:
            before = os.fstat(self._fd).st_size
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
                os.fsync(self._fd)
            except OSError:
                os.ftruncate(self._fd, before)
                raise


def complain(text: str) -> None:
    """Write a line to standard error, which may lie on the disk that is full."""
    with contextlib.suppress(OSError):
        print(f"receiver: {text}", file=sys.stderr, flush=True)


class ReceiverServer(http.server.ThreadingHTTPServer):
    """Listens for notifications; each connection has a thread of its own."""

    def __init__(self, host: str, port: int, log: DeliveryLog) -> None:
        self.log = log
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        # HTTPServer would ask the name service who we are, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up or talks nonsense is worth a line, not a traceback."""
        complain(f"{client_address}: {sys.exc_info()[1]!r}")


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    server: ReceiverServer
    protocol_version = "HTTP/1.1"
    timeout = READ_SECONDS

    def do_GET(self) -> None:
        """Answer the health question."""
        healthy = self.path == "/-/healthy"
        self._answer(HTTPStatus.OK if healthy else HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Write down one notification, then answer."""
        length = self.headers.get("Content-Length")
        if length is None:
            self._refuse(HTTPStatus.LENGTH_REQUIRED)
        elif not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.BAD_REQUEST)
        elif len(length) > 12 or int(length) > MAX_BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self._receive(int(length))

    def _receive(self, length: int) -> None:
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        text = body.decode("utf-8", "backslashreplace")
        try:
            self.server.log.append(Delivery(received_ns=time.time_ns(), body=text))
        except OSError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE)
            self.log_error("cannot write: %s", error.strerror)
        else:
            self._answer(HTTPStatus.OK)

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer without reading the body; the connection cannot be used again."""
        self.close_connection = True
        self._answer(status)

    def _answer(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing about requests that went well."""

    def log_message(self, format: str, *args: object) -> None:
        complain(format % args)


class Receiver:
    """A running receiver process.

    Attributes:
        url: where Alertmanager is to POST.
        log: the file of deliveries, for `tailwatch.notices`.
        process: the process.
    """

    def __init__(self, process: Process, address: str, log: Path) -> None:
        self.process = process
        self.url = f"http://{address}/"
        self.log = log

    def stop(self) -> None:
        """End it; harmless when it has ended."""
        self.process.terminate(2.0)


def start_receiver(log: Path, *, directory: Path, token: str, timeout: float = 15.0) -> Receiver:
    """Start a receiver on a free port of 127.0.0.1; it appends to `log`.

    Its own output and the file that says where it listens go into `directory`.

    Raises:
        StartError: it did not come up within `timeout` seconds.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ready = directory / "receiver.address"
    ready.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "tailwatch.prometheus.receiver", "--listen", "127.0.0.1:0"]
    process = spawn(
        [*argv, "--log", log, "--ready-file", ready],
        log=directory / "receiver.log",
        token=token,
        name="receiver",
    )
    try:
        wait_until(ready.exists, timeout, "the receiver listens", processes=[process])
        return Receiver(process, ready.read_text(encoding="ascii").strip(), log)
    except BaseException:
        process.terminate(1.0)
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Receive until killed; 2 when it cannot listen or cannot write."""
    parser = argparse.ArgumentParser(prog="tailwatch.prometheus.receiver")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="port 0: any")
    parser.add_argument("--log", type=Path, required=True, help="file of deliveries")
    parser.add_argument("--ready-file", type=Path, help="gets HOST:PORT once it listens")
    arguments = parser.parse_args(argv)
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        parser.error(f"--listen {arguments.listen}: expected HOST:PORT")
    doing = f"cannot open {arguments.log}"
    try:
        log = DeliveryLog(arguments.log)
        doing = f"cannot listen on {arguments.listen}"
        with ReceiverServer(host, int(port), log) as server:
            if arguments.ready_file is not None:
                doing = f"cannot write {arguments.ready_file}"
                address = f"{host}:{server.server_port}\n"
                write_durably(arguments.ready_file, address.encode("ascii"))
            doing = "cannot accept connections"
            server.serve_forever()
    except OSError as error:
        complain(f"{doing}: {error.strerror}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
