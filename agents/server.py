"""The small HTTP server of an agent: serves what was rendered before, computes nothing.

Contract: `/metrics` is the bytes last published, `/-/ready` says whether there are any,
`/-/healthy` whether they are fresh. Bytes older than `stale_seconds` are not served (503 with their
age), so an agent whose loop stands still is seen as down and not as calm. Further paths come from
the agent.
One daemon thread a connection; none outlives the process.

Cost: a GET of /metrics is one write; nothing is rendered in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tailwatch.errors import UsageError
from tailwatch.exposition import CONTENT_TYPE

# In an answer of /steps: the cursor from which to ask next.
CURSOR_HEADER = "X-Tailwatch-Cursor"


class Reply(NamedTuple):
    """What a path answers."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Route = Callable[[dict[str, str]], Reply]


class AgentServer:
    """Serves snapshots on `listen` (`host:port`; port 0 takes a free one) until it is closed.

    Raises UsageError when the address cannot be bound.
    """

    def __init__(
        self, listen: str, routes: dict[str, Route] | None = None, *, stale_seconds: float = 15.0
    ) -> None:
        host, port = parse_address(listen, "--listen")
        self._snapshot = b""
        self._published = 0.0
        self._stale_seconds = stale_seconds
        self._routes: dict[str, Route] = {
            "/metrics": self._metrics,
            "/-/healthy": self._healthy,
            "/-/ready": self._ready,
            **(routes or {}),
        }
        try:
            self._http = _Server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"{listen}: {getattr(error, 'strerror', None) or error}; expected a free host:port",
                source="--listen",
            ) from error
        self._http.routes = self._routes
        self.address = f"{host}:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True).start()

    def publish(self, snapshot: bytes) -> None:
        """Serve `snapshot` from now on."""
        self._snapshot = snapshot
        self._published = time.monotonic()

    def close(self) -> None:
        """Stop to listen; connections that are open end with the process."""
        self._http.shutdown()
        self._http.server_close()

    def _problem(self) -> str:
        if not self._published:
            return "nothing published yet"
        age = time.monotonic() - self._published
        return f"snapshot is {age:.1f} s old" if age > self._stale_seconds else ""

    def _metrics(self, _: dict[str, str]) -> Reply:
        problem = self._problem()
        if problem:
            return Reply(503, f"{problem}\n".encode())
        return Reply(200, self._snapshot, CONTENT_TYPE)

    def _healthy(self, _: dict[str, str]) -> Reply:
        problem = self._problem() if self._published else ""
        return Reply(503 if problem else 200, f"{problem or 'ok'}\n".encode())

    def _ready(self, _: dict[str, str]) -> Reply:
        problem = self._problem()
        return Reply(503 if problem else 200, f"{problem or 'ok'}\n".encode())


def parse_address(text: str, source: str) -> tuple[str, int]:
    """Return host and port of `host:port`; raise UsageError for anything else."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 65536):
        raise UsageError(f"{text!r}, expected host:port", source=source)
    return host, int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Two agents on one port would share its requests by chance; a second one has to fail.
    allow_reuse_port = False
    request_queue_size = 64
    routes: dict[str, Route]

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: a client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "tailwatch"
    timeout = 30
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        route = self.server.routes.get(url.path)
        if route is None:
            paths = " ".join(self.server.routes)
            reply = Reply(404, f"no such path; there are {paths}\n".encode())
        else:
            reply = route({k: v[-1] for k, v in parse_qs(url.query).items()})
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: every scrape would be a line."""
