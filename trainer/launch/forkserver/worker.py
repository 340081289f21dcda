"""What a fork of the fork server does to be the rank that its shim would have started.

Contract: `become` returns in a process that leads a session and group of its own, has the shim's
environment, arguments and standard files, its own randomness, the signal mask of a fresh process,
and two ties that kill it: to the server (its parent) and to the shim.
"""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tailwatch.trainer.launch.forkserver.likeness import ignored_signals

_PR_SET_NAME = 15
_prctl = ctypes.CDLL(None).prctl
_forked = False


def is_forked() -> bool:
    """Whether this process is a rank that was forked."""
    return _forked


@dataclass(frozen=True)
class Request:
    """What a shim asked for; `files` are its stdin, stdout, stderr and the pipe that it holds.

    `ignored` are the signals that it was started to ignore.
    """

    shim: int
    module: str
    arguments: list[str]
    environment: dict[bytes, bytes]
    files: list[int]
    ignored: set[int]


def become(request: Request, die_with_server: Callable[[], None]) -> None:
    """Turn this process, forked a moment ago, into the rank of `request`."""
    global _forked
    _forked = True
    die_with_server()
    os.setsid()
    *standard, lifeline = request.files
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _die_with_shim(lifeline)
    os.environ.clear()
    os.environb.update(request.environment)
    time.tzset()
    sys.argv = [str(sys.modules[request.module].__file__), *request.arguments]
    rank = os.environ.get("RANK", "")
    _prctl(_PR_SET_NAME, f"rank{rank}".encode()[:15], 0, 0, 0)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())  # type: ignore[union-attr]
    _be_random()
    _ignore(request.ignored)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _die_with_shim(lifeline: int) -> None:
    """Have the kernel SIGKILL this process when the other end of the pipe is closed.

    Nothing is ever written to it. This does not need the server, nor this process to run.
    """
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, int(signal.SIGKILL))
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    if poller.poll(0):  # closed before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def _ignore(wanted: set[int]) -> None:
    ours = ignored_signals(os.getpid())
    for number in wanted - ours:
        signal.signal(number, signal.SIG_IGN)
    for number in ours - wanted:
        of_python = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if of_python else signal.SIG_DFL)


def _be_random() -> None:
    """Draw anew what a process draws once; `random` and `tempfile` do so by themselves.

    A generator on a device is seeded when the device is initialised, which no server does.
    """
    multiprocessing.current_process().authkey = os.urandom(32)
    if "numpy.random" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
