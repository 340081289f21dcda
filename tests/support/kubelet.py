"""Kubelet's PodResources API on a real gRPC server, with the ways it can be sick."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

from tailwatch.agents.node.podresources.wire import fields, string

grpc: Any = importlib.import_module("grpc")


def message(number: int, content: bytes) -> bytes:
    """Return a field that holds a message."""
    size, head = len(content), bytearray((number << 3 | 2,))
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*head, size)) + content


def devices(resource: str, *ids: str) -> bytes:
    """Return ContainerDevices."""
    return message(2, string(1, resource) + b"".join(string(2, i) for i in ids))


def claim(driver: str, device: str, pool: str = "node-a") -> bytes:
    """Return a DynamicResource with one device."""
    content = string(2, driver) + string(3, pool) + string(4, device)
    return message(5, string(2, "claim") + string(3, "rl") + message(4, content))


def pod(name: str, *held: bytes, namespace: str = "rl", container: str = "worker") -> bytes:
    """Return the PodResources of a pod with one container."""
    return (
        string(1, name) + string(2, namespace) + message(3, string(1, container) + b"".join(held))
    )


class FakeKubelet:
    """A PodResources server on a socket.

    Attributes:
        pods: what List returns, PodResources messages.
        gone: names that Get does not know though List has them.
        answer: called instead of List when set; may abort or sleep on `released`.
        calls: the methods called so far.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: list[bytes] = []
        self.gone: set[str] = set()
        self.answer: Callable[[Any], bytes] | None = None
        self.released = threading.Event()
        self.calls: list[str] = []
        self._server: Any = None
        self.start()

    def start(self) -> None:
        """Serve; on a new socket after `stop`."""
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=4),
            options=(("grpc.max_send_message_length", -1),),
        )
        handlers = {
            "List": grpc.unary_unary_rpc_method_handler(self._list),
            "Get": grpc.unary_unary_rpc_method_handler(self._get),
        }
        name = "v1.PodResourcesLister"
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, handlers),)
        )
        assert self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def _list(self, request: bytes, context: Any) -> bytes:
        assert request == b""
        self.calls.append("List")
        if self.answer is not None:
            return self.answer(context)
        return b"".join(message(1, content) for content in self.pods)

    def _get(self, request: bytes, context: Any) -> bytes:
        self.calls.append("Get")
        name = dict(fields(request))[1].decode()
        for content in self.pods:
            if dict(fields(content))[1].decode() == name and name not in self.gone:
                return message(1, content)
        context.abort(grpc.StatusCode.UNKNOWN, f"pod {name} in namespace rl not found")
        raise AssertionError("abort raises")

    def refuse(self, code: Any, text: str) -> None:
        """Let List fail."""

        def answer(context: Any) -> bytes:
            context.abort(code, text)
            raise AssertionError("abort raises")

        self.answer = answer

    def hang(self) -> None:
        """Let List answer nothing until `released` is set."""

        def answer(context: Any) -> bytes:
            self.released.wait(60)
            return b""

        self.answer = answer

    def stop(self) -> None:
        """End, and take the socket away."""
        self.released.set()
        self._server.stop(None).wait()
        self.socket.unlink(missing_ok=True)
