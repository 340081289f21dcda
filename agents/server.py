"""The small HTTP server of an agent: serves what was added up before, asks nobody.

Contract: `/metrics` is what was last published, as Prometheus text or, where the client prefers it,
as OpenMetrics; `/-/ready` says whether there is any and what the agent says of its sources,
`/-/healthy` whether it is fresh. What is older than `stale_seconds` is not served (503 with its
age), so an agent whose loop stands still is seen as down and not as calm. Further paths come from
the agent. One daemon thread a connection, at most `MOST_CONNECTIONS`; none outlives the process.

Cost: nothing while nobody asks. What was published becomes text at its first GET; each other GET is
one write.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tailwatch.agents.web import WebConfig, WebSettings, san_allowed
from tailwatch.errors import UsageError
from tailwatch.exposition import CONTENT_TYPE, OPENMETRICS_TYPE, Snapshot

MOST_CONNECTIONS = 64
_HANDSHAKE_SECONDS = 10.0

# In an answer of /steps: the cursor from which to ask next.
CURSOR_HEADER = "X-Tailwatch-Cursor"


class Reply(NamedTuple):
    """What a path answers."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Route = Callable[[dict[str, str]], Reply]


class _Published:
    """What was published, and when; text is made of it once and when it is asked for."""

    def __init__(self, offer: bytes | Callable[[], Snapshot]) -> None:
        self.at = time.monotonic()
        self._offer = offer
        self._lock = threading.Lock()

    def reply(self, openmetrics: bool) -> Reply:
        if isinstance(self._offer, bytes):
            return Reply(200, self._offer, CONTENT_TYPE)
        with self._lock:
            if openmetrics:
                return Reply(200, self._openmetrics, OPENMETRICS_TYPE)
            return Reply(200, self._text, CONTENT_TYPE)

    @functools.cached_property
    def _snapshot(self) -> Snapshot:
        assert not isinstance(self._offer, bytes)
        return self._offer()

    @functools.cached_property
    def _text(self) -> bytes:
        return self._snapshot.render()

    @functools.cached_property
    def _openmetrics(self) -> bytes:
        return self._snapshot.render_openmetrics()


class AgentServer:
    """Serves snapshots on `listen` (`host:port`; port 0 takes a free one) until it is closed.

    Args:
        listen: where to serve.
        routes: paths of the agent's own.
        stale_seconds: age from which a snapshot is served no longer.
        ready: whether the agent's sources are fresh, and lines that say more.
        web_config: file with TLS and users; None serves plain HTTP to everybody.

    Raises UsageError when the address cannot be bound or the file is wrong.
    """

    def __init__(
        self,
        listen: str,
        routes: dict[str, Route] | None = None,
        *,
        stale_seconds: float = 15.0,
        ready: Callable[[], tuple[bool, str]] | None = None,
        web_config: Path | None = None,
    ) -> None:
        host, port = parse_address(listen, "--listen")
        self._ready_of_agent = ready
        self._published: _Published | None = None
        self._stale_seconds = stale_seconds
        self._routes: dict[str, Route] = {
            "/metrics": functools.partial(self._metrics, openmetrics=False),
            "/-/healthy": self._healthy,
            "/-/ready": self._ready,
            **(routes or {}),
        }
        web = WebConfig(web_config) if web_config else None
        try:
            self._http = _Server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"{listen}: {getattr(error, 'strerror', None) or error}; expected a free host:port",
                source="--listen",
            ) from error
        self._http.routes = self._routes
        self._http.openmetrics = functools.partial(self._metrics, openmetrics=True)
        self._http.web = web
        self.address = f"{host}:{self._http.server_address[1]}"
        self._listening = threading.Thread(target=self._http.listen, daemon=True, name="listen")
        self._listening.start()

    def publish(self, offer: bytes | Callable[[], Snapshot]) -> None:
        """Serve this from now on: Prometheus text, or what is called, once, when somebody asks."""
        self._published = _Published(offer)

    def close(self) -> None:
        """Stop to listen; connections that are open end with the process."""
        self._http.end()
        self._listening.join()
        self._http.server_close()

    def _problem(self) -> str:
        published = self._published
        if published is None:
            return "nothing published yet"
        age = time.monotonic() - published.at
        return f"snapshot is {age:.1f} s old" if age > self._stale_seconds else ""

    def _metrics(self, _: dict[str, str], *, openmetrics: bool) -> Reply:
        problem, published = self._problem(), self._published
        if problem or published is None:
            return Reply(503, f"{problem}\n".encode())
        return published.reply(openmetrics)

    def _healthy(self, _: dict[str, str]) -> Reply:
        problem = self._problem() if self._published else ""
        return Reply(503 if problem else 200, f"{problem or 'ok'}\n".encode())

    def _ready(self, _: dict[str, str]) -> Reply:
        problem = self._problem()
        if problem or self._ready_of_agent is None:
            return Reply(503 if problem else 200, f"{problem or 'ok'}\n".encode())
        ready, text = self._ready_of_agent()
        return Reply(200 if ready else 503, text.encode())


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
    openmetrics: Route
    web: WebConfig | None = None

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._ended = False
        super().__init__(*arguments)

    def listen(self) -> None:
        """Take connections until the end; unlike `serve_forever` it wakes for nothing else."""
        while not self._ended:
            self.handle_request()

    def end(self) -> None:
        """Make `listen` return."""
        self._ended = True
        # A thread that waits for connections wakes for this.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection, in its own thread; with TLS the handshake comes first."""
        settings = self.web.settings() if self.web else None
        if settings is None or settings.context is None:
            # A file that is wrong may have asked for TLS: then nobody may speak in the clear.
            if self.web is None or settings is not None:
                super().finish_request(request, client_address)
            return
        request.settimeout(_HANDSHAKE_SECONDS)
        with contextlib.suppress(OSError):
            wrapped = settings.context.wrap_socket(request, server_side=True)
            try:
                if san_allowed(wrapped.getpeercert(), settings.allowed_sans):
                    super().finish_request(wrapped, client_address)
            finally:
                _end_tls(wrapped)

    def handle_error(self, request: object, client_address: object) -> None:
        """Stay silent: a client that went away is no news."""


def _end_tls(wrapped: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        wrapped.shutdown(socket.SHUT_WR)
    wrapped.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "tailwatch"
    sys_version = ""
    timeout = 30
    server: _Server

    def do_GET(self) -> None:
        settings = WebSettings() if self.server.web is None else self.server.web.settings()
        reply = self._reply(settings)
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in (*reply.headers, *(settings.headers if settings else ())):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def _reply(self, settings: WebSettings | None) -> Reply:
        web = self.server.web
        if settings is None:
            return Reply(500, b"the file with TLS and users is wrong\n")
        if web is not None and settings.users is not None:
            given = self.headers.get("Authorization", "")
            if not web.lets_in(settings.users, given):
                ask = (("WWW-Authenticate", 'Basic realm="tailwatch"'),)
                return Reply(401, b"expected a user and his password\n", headers=ask)
        url = urlsplit(self.path)
        route = self.server.routes.get(url.path)
        if route is None:
            paths = " ".join(self.server.routes)
            return Reply(404, f"no such path; there are {paths}\n".encode())
        if url.path == "/metrics" and prefers_openmetrics(self.headers.get("Accept", "")):
            route = self.server.openmetrics
        return route({k: v[-1] for k, v in parse_qs(url.query).items()})

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: every scrape would be a line."""


def prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header likes OpenMetrics 1.0 better than plain text.

    >>> prefers_openmetrics("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3")
    True
    """
    best = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for entry in accept.split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        named = dict(p.partition("=")[::2] for p in parameters)
        if kind not in best or not named.get("version", "1.0.0").startswith(("0.0.4", "1.0")):
            continue
        with contextlib.suppress(ValueError):
            best[kind] = max(best[kind], float(named.get("q", "1")))
    return best["application/openmetrics-text"] > best["text/plain"]
