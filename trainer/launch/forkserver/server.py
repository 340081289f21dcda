"""The fork server of a node: `python -m tailwatch.trainer.launch.forkserver.server NAME MODULE`

Contract: imports MODULE, calls its `preload()`, and from then on forks a rank for each shim that
asks at the abstract unix socket NAME, if the rank would be the same as one that was started (see
`likeness`). Only processes of this user are answered. It has one thread, no process group and no
device context, checked before each fork: a fork copies no other thread, and a lock that one held
would stay locked for ever. (`fork` before CUDA is initialised is allowed; it has not run on a GPU.)

It listens before it imports, so that the first ranks wait for one import instead of each doing its
own. Signals that end a job are not for it: it ends with the launcher that started it, and the
kernel then kills its ranks. Once a file that it has imported changes it refuses, and ends when its
last rank has.

A rank's group is killed when its shim's connection ends and when the rank itself has ended, before
it is reaped. Each end is a line `ended TIME_NS pid PID STATUS` in its output.

Cost: about 300 MB shared with the ranks; a fork takes some 10 ms, most of it stats of files.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from types import FrameType

from tailwatch.processes.identity import death_signal_setter, open_pidfd
from tailwatch.trainer.launch.forkserver import shim
from tailwatch.trainer.launch.forkserver.hold import LISTENING
from tailwatch.trainer.launch.forkserver.likeness import (
    LoadedCode,
    conditions,
    difference,
    early,
    ignored_signals,
)
from tailwatch.trainer.launch.forkserver.worker import Request, become

MOST_REQUEST_BYTES = 1 << 24
_SYS_PIDFD_SEND_SIGNAL = 424  # the same on every architecture
_SI_QUEUE = -1
_libc = ctypes.CDLL(None, use_errno=True)


class _SignalInfo(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int), ("error", ctypes.c_int), ("code", ctypes.c_int),
        ("padding", ctypes.c_int), ("pid", ctypes.c_int), ("uid", ctypes.c_uint),
        ("rest", ctypes.c_byte * 104),
    ]  # fmt: skip


class Connection:
    """A shim that asks, and later the rank that it stands for."""

    def __init__(self, sock: socket.socket, shim_pid: int) -> None:
        self.sock = sock
        self.shim = shim_pid
        self.received = bytearray()
        self.files: list[int] = []
        self.request: Request | None = None
        self.pid = 0
        self.pidfd = -1

    def close_files(self) -> None:
        """Close what the shim has sent."""
        for descriptor in self.files:
            os.close(descriptor)
        self.files = []

    def close(self) -> None:
        """Close everything of it."""
        self.close_files()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.sock.close()


class Server:
    """Answers shims until a fork of it is a rank."""

    def __init__(self, listener: socket.socket, module: str, started_with: dict[str, str]) -> None:
        self._listener = listener
        self._module = module
        self._environment = started_with
        self._conditions = conditions(os.getpid())
        self._directory = os.getcwd()
        self._code = LoadedCode()
        self._stale = False
        self._connections: dict[int, Connection] = {}
        self._die_with_us = death_signal_setter(os.getpid())
        self._poller = select.poll()
        self._ends, self._tell_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._tell_end, warn_on_full_buffer=False)
        for descriptor in (listener.fileno(), self._ends):
            self._poller.register(descriptor, select.POLLIN)

    def serve(self) -> Request | None:
        """Return the request in a fork that is to be its rank, None in a server that is stale."""
        while not (self._stale and not self._connections):
            for descriptor, _ in self._poller.poll():
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == self._ends:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._ends, 4096)
                    self._reap()
                elif descriptor in self._connections:
                    request = self._read(self._connections[descriptor])
                    if request is not None:
                        return request
        return None

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        size = shim.PEER_CREDENTIALS_BYTES
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid = (int.from_bytes(credentials[at : at + 4], sys.byteorder) for at in (0, 4))
        if uid != os.geteuid():
            sock.close()
            return
        sock.setblocking(False)
        self._connections[sock.fileno()] = Connection(sock, pid)
        self._poller.register(sock.fileno(), select.POLLIN)

    def _drop(self, connection: Connection) -> None:
        self._poller.unregister(connection.sock.fileno())
        del self._connections[connection.sock.fileno()]
        connection.close()

    def _read(self, connection: Connection) -> Request | None:
        """Take what a shim has sent; return a request in the fork that is its rank."""
        try:
            if connection.request is None:
                data, files, _, _ = socket.recv_fds(connection.sock, 1 << 16, 4)
                connection.files += files
            else:
                data = connection.sock.recv(4096)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            if connection.pid:
                _kill_group(connection.pid)  # reaped, and dropped, when it has ended
                self._poller.unregister(connection.sock.fileno())
            else:
                self._drop(connection)
            return None
        connection.received += data
        if connection.request is None:
            self._consider(connection)
        elif not connection.pid and connection.received[:1] == shim.GO:
            del connection.received[:1]
            return self._fork(connection, connection.request)
        elif connection.pid:
            self._hand_on(connection)
        return None

    def _consider(self, connection: Connection) -> None:
        """Answer a request once it is whole."""
        length = int.from_bytes(connection.received[:8], "little")
        if len(connection.received) < 8 or len(connection.received) < 8 + length:
            if length > MOST_REQUEST_BYTES:
                self._drop(connection)
            return
        try:
            module, directory, arguments, environment = shim.decode(
                bytes(connection.received[8 : 8 + length])
            )
        except ValueError:
            self._drop(connection)
            return
        del connection.received[: 8 + length]
        try:
            ignored = ignored_signals(connection.shim)
        except OSError:  # it is gone
            self._drop(connection)
            return
        connection.request = Request(
            connection.shim, module, arguments, environment, list(connection.files), ignored
        )
        reason = self._unlike(connection.request, directory)
        answer = shim.READY if not reason else shim.REFUSED + reason.encode()
        with contextlib.suppress(OSError):
            connection.sock.send(answer)
        if reason:
            _say(f"refused pid {connection.shim}: {reason}")
            self._drop(connection)

    def _unlike(self, request: Request, directory: str) -> str:
        """Return why a fork would not be the rank that is asked for, or an empty string."""
        if len(request.files) != 4:
            return "a request without its files"
        if request.module != self._module:
            return f"it has imported {self._module}"
        if directory != self._directory:
            return "another working directory"
        variable = difference(self._environment, early(request.environment))
        if variable:
            return f"another {variable} in the environment"
        try:
            condition = difference(self._conditions, conditions(request.shim))
        except OSError:
            return "the process that asked is gone"
        if condition:
            return f"other conditions: {condition}"
        changed = self._code.changed()
        if changed:
            self._stale = True
            return f"{changed} has changed since it was imported"
        threads = len(os.listdir("/proc/self/task"))
        return "" if threads == 1 else f"it has {threads} threads, which a fork would lose"

    def _fork(self, connection: Connection, request: Request) -> Request | None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._let_go(connection)
            become(request, self._die_with_us)
            return request
        connection.pid = pid
        pidfd = open_pidfd(pid)
        assert pidfd is not None  # not reaped, and the kernel has pidfds: asked at the start
        connection.pidfd = pidfd
        connection.close_files()
        _say(f"forked pid {pid} for pid {request.shim}")
        return None

    def _let_go(self, mine: Connection) -> None:
        """Close, in a fork, what belongs to the server and to other ranks."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        mine.files = []
        for connection in self._connections.values():
            connection.close()
        self._listener.close()
        os.close(self._ends)
        os.close(self._tell_end)

    def _hand_on(self, connection: Connection) -> None:
        """Send a rank the signals that its shim got, with the sender that they had."""
        size = shim.SIGNAL_BYTES
        while len(connection.received) >= size:
            number = connection.received[0]
            sender = int.from_bytes(connection.received[1:size], "little")
            del connection.received[:size]
            # A rank tells by the sender whether its launcher wants it to end or somebody evicts it.
            info = _SignalInfo(number=number, code=_SI_QUEUE, pid=sender, uid=os.getuid())
            _libc.syscall(_SYS_PIDFD_SEND_SIGNAL, connection.pidfd, number, ctypes.byref(info), 0)

    def _reap(self) -> None:
        for connection in list(self._connections.values()):
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if not connection.pid or os.waitid(os.P_PID, connection.pid, options) is None:
                continue
            now = time.time_ns()
            _kill_group(connection.pid)
            _, status = os.waitpid(connection.pid, 0)
            _say(f"ended {now} pid {connection.pid} {os.waitstatus_to_exitcode(status)}")
            with contextlib.suppress(OSError):
                connection.sock.send(shim.ENDED + status.to_bytes(4, "little"))
            with contextlib.suppress(KeyError):  # its shim was gone before it
                self._poller.unregister(connection.sock.fileno())
            del self._connections[connection.sock.fileno()]
            connection.close()


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Take SIGCHLD, so that it wakes the poll."""


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)  # it may not lead its group yet
        os.killpg(pid, signal.SIGKILL)


def _say(text: str) -> None:
    print(text, flush=True)


def main(argv: list[str]) -> int:
    """Serve; in a fork, be the rank."""
    parser = argparse.ArgumentParser(prog="python -m tailwatch.trainer.launch.forkserver.server")
    parser.add_argument("name", help="abstract unix socket to serve on")
    parser.add_argument("module", help="module whose main is a rank, and whose preload is called")
    arguments = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, shim.FORWARDED)
    if open_pidfd(os.getpid()) is None:
        _say("the kernel has no pidfds (Linux 5.3): ranks are started, not forked")
        return 1
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{arguments.name}")
    listener.listen(128)
    _say(LISTENING)
    started_with = early(os.environb)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's import would start threads otherwise
    module = importlib.import_module(arguments.module)
    module.preload()
    gc.collect()
    gc.freeze()  # what is there now stays; a collection in a rank would copy all these pages
    listener.setblocking(False)
    server = Server(listener, arguments.module, started_with)
    _say("ready")
    request = server.serve()
    if request is None:
        _say("stale: a file that was imported has changed")
        return 0
    code: int = module.main(request.arguments)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
