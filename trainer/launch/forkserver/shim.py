"""What torchrun starts in place of a rank: `python -I -S shim.py NAME PARENT MODULE ARGUMENT...`

Contract: asks the fork server at the abstract unix socket NAME for a rank that runs `main` of
MODULE with these arguments in this environment and with this stdin, stdout and stderr; hands on
signals together with their sender; ends as the rank ended, by exit status or by the same signal.
When it is killed the rank is killed: the server sees the connection end, and the kernel sends
SIGKILL when the pipe that only this process holds open is closed, even to a rank that is stopped
and from a server that is. When the server dies its ranks die with it, and this process ends as
killed.

Where no rank comes of it (no server, one of another user, one that refuses or says nothing for
`READY_SECONDS`) this process turns into `python -m MODULE ARGUMENT...`, which the kernel kills when
the process PARENT ends. A rank is forked only after this process has said `go`, and after that it
never starts one itself: there is never a second.

Run by path and without site-packages, so nothing of the product is imported, and of the standard
library only what is written in C: `socket` and `signal` would double the time this takes to start.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import fcntl
import os
import sys

READY_SECONDS = 60.0
READY, REFUSED, ENDED, GO = b"R", b"N", b"E", b"G"
FORWARDED = (
    _signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGQUIT,
    _signal.SIGUSR1, _signal.SIGUSR2, _signal.SIGCONT,
)  # fmt: skip
SIGNAL_BYTES = ENDED_BYTES = 5
PEER_CREDENTIALS_BYTES = 12


class NoRank(Exception):
    """The fork server gives no rank; the message says why."""


def encode(module: str, arguments: list[str]) -> bytes:
    """Return a request: its length in 8 bytes, then fields that end in a zero byte."""
    fields = [os.fsencode(text) for text in (module, os.getcwd(), str(len(arguments)), *arguments)]
    fields += [name + b"=" + value for name, value in os.environb.items()]
    body = b"".join(field + b"\0" for field in fields)
    return len(body).to_bytes(8, "little") + body


def decode(body: bytes) -> tuple[str, str, list[str], dict[bytes, bytes]]:
    """Return module, working directory, arguments and environment of a request's body."""
    module, directory, count, *rest = body.split(b"\0")[:-1]
    environment = dict(field.split(b"=", 1) for field in rest[int(count) :])
    arguments = [os.fsdecode(field) for field in rest[: int(count)]]
    return os.fsdecode(module), os.fsdecode(directory), arguments, environment


def ask(name: str, module: str, arguments: list[str]) -> tuple[_socket.socket, int]:
    """Return a connection on which a rank stands ready, and the pipe whose end ends the rank."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(READY_SECONDS)
    try:
        connection.connect(f"\0{name}")
        credentials = connection.getsockopt(
            _socket.SOL_SOCKET, _socket.SO_PEERCRED, PEER_CREDENTIALS_BYTES
        )
        if int.from_bytes(credentials[4:8], sys.byteorder) != os.geteuid():
            raise NoRank("it belongs to another user")
        theirs, ours = os.pipe()
        request = encode(module, arguments)
        descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, theirs))
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)]
        rest = request[connection.sendmsg([request], rights) :]
        if rest:  # a server that has refused already is no broken pipe
            connection.sendall(rest)
        os.close(theirs)
        answer = connection.recv(1)
        if answer != READY:
            raise NoRank(connection.recv(4096).decode("utf-8", "replace") or "it ended")
        return connection, ours
    except OSError as error:  # a timeout, too
        connection.close()
        raise NoRank(error.strerror or str(error)) from None


def wait(connection: _socket.socket) -> int | None:
    """Say go and hand on signals until the rank ends; return its wait status, None: not known."""
    waited = {*FORWARDED, _signal.SIGIO}
    _signal.pthread_sigmask(_signal.SIG_BLOCK, waited)
    connection.setblocking(False)
    # The kernel tells of data on the connection by a signal, so there is one thing to wait for.
    fcntl.fcntl(connection.fileno(), fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(connection.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(connection.fileno(), fcntl.F_SETFL, flags | os.O_ASYNC)
    _send(connection, GO)
    answer = b""
    while len(answer) < ENDED_BYTES:
        try:
            chunk = connection.recv(ENDED_BYTES - len(answer))
        except BlockingIOError:
            info = _signal.sigwaitinfo(waited)
            if info.si_signo != _signal.SIGIO:
                sender = info.si_pid.to_bytes(4, "little")
                _send(connection, bytes([info.si_signo]) + sender)
            continue
        except OSError:
            return None
        if not chunk:
            return None
        answer += chunk
    return int.from_bytes(answer[1:], "little")


def _send(connection: _socket.socket, data: bytes) -> None:
    """Send what little there is; the rank may just have ended, which is still to be read."""
    try:
        connection.send(data)
    except OSError:
        return


def end_as(status: int) -> None:
    """End this process as another one ended."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    import resource

    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has left one, if any
    if number not in (_signal.SIGKILL, _signal.SIGSTOP):
        _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def start(parent: int, module: str, arguments: list[str]) -> None:
    """Turn this process into the rank, started from nothing."""
    import ctypes

    if parent:
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(_signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def say(text: str) -> None:
    """Write a line to stderr."""
    os.write(2, f"rank {os.environ.get('RANK', '?')}: {text}\n".encode())


def main(argv: list[str]) -> None:
    """Be a rank, one way or the other."""
    name, parent, module, *arguments = argv
    try:
        connection, _lifeline = ask(name, module, arguments)
    except NoRank as reason:
        say(f"not forked: {reason}")
        start(int(parent), module, arguments)
        return
    status = wait(connection)
    if status is None:
        say("the fork server has ended, and this rank with it")
        status = int(_signal.SIGKILL)
    end_as(status)


if __name__ == "__main__":
    main(sys.argv[1:])
