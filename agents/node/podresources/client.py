"""Asks kubelet over its socket.

Contract: `list` and `get` raise `SourceError` with the name of the gRPC status. One channel is kept
and made anew when the socket has become another file (kubelet was started again) or kubelet was
unavailable. gRPC is imported on first use; without it every call says `PACKAGE_MISSING`.

Cost: one call takes about 1 ms and counts against the 100 a second that all clients share.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tailwatch.agents.node.base import SourceError
from tailwatch.agents.node.podresources.messages import (
    GET,
    LIST,
    Pod,
    get_request,
    parse_get,
    parse_list,
)

_T = TypeVar("_T")

TIMEOUT_SECONDS = 4.0
# What kubelet itself takes as the limit for its own clients.
_MOST_BYTES = 16 << 20


class PodResources:
    """The PodResources API behind one socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel: Any = None
        self._inode = 0

    def list(self) -> tuple[Pod, ...]:
        """Return all pods of the node that hold something."""
        return self._parsed(parse_list, self._call(LIST, b""))

    def get(self, namespace: str, name: str) -> Pod | None:
        """Return one pod; None when kubelet does not know it any more."""
        try:
            return self._parsed(parse_get, self._call(GET, get_request(namespace, name)))
        except SourceError as error:
            # Kubelet returns a plain error for a pod it does not have, and that becomes UNKNOWN.
            if error.code in ("NOT_FOUND", "UNKNOWN") and "not found" in str(error):
                return None
            raise

    @staticmethod
    def _parsed(parse: Callable[[bytes], _T], data: bytes) -> _T:
        try:
            return parse(data)
        except ValueError as error:
            raise SourceError("MALFORMED", f"kubelet's answer is {error}") from error

    def _call(self, method: str, request: bytes) -> bytes:
        try:
            grpc = importlib.import_module("grpc")
        except ImportError:
            raise SourceError("PACKAGE_MISSING", "the package grpcio is missing") from None
        inode = self._socket.stat().st_ino
        if self._channel is None or inode != self._inode:
            self.close()
            self._channel = grpc.insecure_channel(
                f"unix:{self._socket.absolute()}",
                options=(
                    ("grpc.max_receive_message_length", _MOST_BYTES),
                    ("grpc.enable_http_proxy", 0),
                    # The authority of a unix socket is its path; kubelet's server wants a name.
                    ("grpc.default_authority", "localhost"),
                ),
            )
            self._inode = inode
        ask = self._channel.unary_unary(method)
        try:
            answer: bytes = ask(request, timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            code = error.code().name
            if code == "UNAVAILABLE":
                self.close()
            raise SourceError(code, f"kubelet: {code}: {error.details()}") from None
        return answer

    def close(self) -> None:
        """Close the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
