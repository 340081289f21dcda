"""The fabric canary: how long a small message takes to another node and back.

Contract: a `Transport` sends a message and waits for its echo; TCP is one, others (EFA) come by the
same protocol. `Canary` is a part that measures one peer over one transport; what it measured stays
in histograms from its start on, one for each load of the fabric, so that a slow path is told from a
busy one. `EchoServer` answers the TCP canaries of other nodes: it returns
at most `MESSAGE_BYTES` at a time and holds at most `MOST_CONNECTIONS`.

Cost: `BURST` round trips a read on a connection that stays open; nothing while no peer is named.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import selectors
import socket
import threading
import time
from typing import Protocol

from tailwatch.agents.node.base import SourceError
from tailwatch.agents.node.fabric_load import LOADS, FabricLoad, Load
from tailwatch.agents.server import parse_address
from tailwatch.catalogue.host import CANARY_BOUNDS
from tailwatch.errors import UsageError
from tailwatch.exposition import Snapshot

MESSAGE_BYTES = 64
MOST_CONNECTIONS = 4096
BURST = 4
_PATIENCE_SECONDS = 1.5


class Transport(Protocol):
    """A way for a small message to another node and back."""

    name: str

    def round_trip(self, message: bytes) -> bytes:
        """Send a message and return what came back; raise OSError when it does not."""

    def close(self) -> None:
        """Let go of the connection; the next round trip makes a new one."""


class TcpTransport:
    """A TCP connection that stays open."""

    name = "tcp"

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._socket: socket.socket | None = None

    def round_trip(self, message: bytes) -> bytes:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=_PATIENCE_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(message)
        answer = b""
        while len(answer) < len(message):
            part = self._socket.recv(len(message) - len(answer))
            if not part:
                raise ConnectionResetError("the peer closed the connection")
            answer += part
        return answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Measured:
    """Round trips by duration, and their sum in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(CANARY_BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(CANARY_BOUNDS, seconds)] += 1
        self.total += seconds


class Canary:
    """Measures one peer; `key` is `canary/<peer>/<transport>`."""

    def __init__(self, node: str, peer: str, transport: Transport, load: FabricLoad) -> None:
        self.key = f"canary/{peer}/{transport.name}"
        self._labels = {"node": node, "peer": peer, "transport": transport.name}
        self._transport = transport
        self._load = load
        self._measured = {of: _Measured() for of in LOADS}
        self._seen: tuple[tuple[Load, tuple[int, ...], float], ...] = ()

    def read(self) -> None:
        # The traffic up to now: what a round trip has to wait behind was there before it.
        measured = self._measured[self._load.now()]
        try:
            self._transport.round_trip(b"\0" * MESSAGE_BYTES)
            for _ in range(BURST):
                message = os.urandom(MESSAGE_BYTES)
                started = time.perf_counter()
                answer = self._transport.round_trip(message)
                taken = time.perf_counter() - started
                if answer != message:
                    raise SourceError("wrong_echo", "the peer answered with something else")
                measured.add(taken)
        except (OSError, SourceError):
            self._transport.close()
            raise
        self._seen = tuple(
            (of, tuple(m.counts), m.total)
            for of, m in self._measured.items()
            if of != "unknown" or any(m.counts)
        )

    def add_to(self, snapshot: Snapshot) -> None:
        name = "tailwatch_fabric_canary_seconds"
        for load, counts, total in self._seen:
            snapshot.add_histogram(name, counts, total, **self._labels, load=load)

    def close(self) -> None:
        self._transport.close()


def canary(node: str, peer: str, load: FabricLoad) -> Canary:
    """Return the canary of a `name=host:port`; raise UsageError for anything else."""
    name, equals, address = peer.partition("=")
    if not (name and equals):
        raise UsageError(f"{peer!r}, expected name=host:port", source="--canary.peer")
    return Canary(node, name, TcpTransport(*parse_address(address, "--canary.peer")), load)


class EchoServer:
    """Answers canaries on `listen` until it is closed; raises UsageError when it cannot."""

    def __init__(self, listen: str) -> None:
        host, port = parse_address(listen, "--canary.listen-address")
        try:
            self._listener = socket.create_server((host, port), backlog=256)
        except OSError as error:
            raise UsageError(
                f"{listen}: {error.strerror}; expected a free host:port",
                source="--canary.listen-address",
            ) from error
        self._listener.setblocking(False)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="canary")
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.2):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._answer(key.fileobj)
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if self._connections >= MOST_CONNECTIONS:
                connection.close()
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ)
            self._connections += 1

    def _answer(self, connection: socket.socket) -> None:
        try:
            message = connection.recv(MESSAGE_BYTES)
            # A client that does not read its echoes is let go of and not waited for.
            if message and connection.send(message) == len(message):
                return
        except OSError:
            pass
        self._selector.unregister(connection)
        connection.close()
        self._connections -= 1

    def close(self) -> None:
        """Stop to answer."""
        self._ended.set()
        self._thread.join(timeout=1.0)
