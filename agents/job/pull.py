"""Fetches new frames from the step log of each node agent.

Contract: one request in flight a node, so a node that hangs delays nobody else and costs one
thread. What was fetched is handed over in the order of its log; a cursor moves only with frames
that were, and over damage that the node names. A node whose log was begun anew is read from its
start.

Cost: one GET a node and interval on a kept connection.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from tailwatch.agents.server import CURSOR_HEADER, parse_address
from tailwatch.agents.service import log

LIMIT_BYTES = 1 << 20
TIMEOUT_SECONDS = 5.0
_THREADS = 32


class Frames(NamedTuple):
    """Frames of one node: `data` begins at `cursor` of its log."""

    node: str
    cursor: int
    data: bytes


class NodeLog:
    """The step log of one node agent at `host:port`, read from `cursor` on."""

    def __init__(self, node: str, address: str, cursor: int = 0) -> None:
        self.node = node
        self.cursor = cursor
        self._host, self._port = parse_address(address, "--nodes")
        self._connection: http.client.HTTPConnection | None = None
        self._problem = ""

    def fetch(self) -> Frames:
        """Return what is new, empty when there is nothing or the node does not answer."""
        cursor = self.cursor
        try:
            data, following = self._get(cursor)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._disconnect()
            self._note(str(error) or type(error).__name__)
            return Frames(self.node, cursor, b"")
        self._note("")
        self.cursor = following
        return Frames(self.node, cursor, data)

    def _get(self, cursor: int) -> tuple[bytes, int]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                self._host, self._port, timeout=TIMEOUT_SECONDS
            )
        self._connection.request("GET", f"/steps?cursor={cursor}&limit={LIMIT_BYTES}")
        response = self._connection.getresponse()
        body = response.read()
        if response.status == 416 and cursor > 0:
            log(f"node {self.node}: its log was begun anew; read from the start")
            return b"", 0
        following = response.getheader(CURSOR_HEADER)
        end = cursor + len(body)
        if response.status != 200 or following is None or int(following) < end:
            text = body[:200].decode(errors="replace").strip()
            raise ValueError(f"/steps answered {response.status} {text}")
        if int(following) > end:
            log(f"node {self.node}: its log is damaged from {end} to {following}, passed over")
        return body, int(following)

    def abort(self) -> None:
        """End a request in flight at once."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            log(f"node {self.node}: {problem or 'answers again'}")
        self._problem = problem


class Puller:
    """Reads all nodes' logs; `round` returns what came in within its time."""

    def __init__(self, logs: list[NodeLog]) -> None:
        self.logs = logs
        self._pool = ThreadPoolExecutor(max_workers=min(_THREADS, len(logs)))
        self._flying: dict[str, Future[Frames]] = {}

    def round(self, seconds: float) -> list[Frames]:
        """Ask every node that is not being asked, and return the frames there are in `seconds`."""
        for node_log in self.logs:
            if node_log.node not in self._flying:
                self._flying[node_log.node] = self._pool.submit(node_log.fetch)
        wait(self._flying.values(), timeout=seconds)
        done = [node for node, future in self._flying.items() if future.done()]
        return [frames for node in done if (frames := self._flying.pop(node).result()).data]

    def close(self) -> None:
        """Ask no more, and wait for nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for node_log in self.logs:
            node_log.abort()
