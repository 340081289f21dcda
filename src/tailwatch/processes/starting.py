"""Start a part and wait for it, with a message that says which part failed and where to look."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tailwatch.processes.child import Process

T = TypeVar("T")

PORT_TRIES = 5
PORT_TAKEN = "address already in use"
LISTENING = "0A"  # the state of a socket in /proc/net/tcp


class StartError(Exception):
    """A part did not come up: one line with its name, its log file and the log's last line."""


def how_it_ended(status: int) -> str:
    """Return an exit status in words; a negative one is a signal."""
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def last_words(process: Process) -> str:
    """Return the log of a process and its last line."""
    line = process.last_line()
    return f"{process.log}: {line}" if line else f"{process.log} is empty"


def wait_until(
    predicate: Callable[[], T],
    timeout: float,
    what: str,
    *,
    processes: Sequence[Process] = (),
    interval: float = 0.05,
) -> T:
    """Call `predicate` every `interval` seconds until it is true; return what it returned.

    `what` completes the sentence "waiting until ...", for example "prometheus is ready".

    Raises:
        StartError: one of `processes` ended, or `timeout` seconds have passed.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        if result:
            return result
        for process in processes:
            status = process.poll()
            if status is not None:
                how, words = how_it_ended(status), last_words(process)
                raise StartError(
                    f"{process.name} ended ({how}) while waiting until {what}; {words}"
                )
        if time.monotonic() > deadline:
            stories = "".join(f"; {p.name}: {last_words(p)}" for p in processes)
            raise StartError(f"waited {timeout:g} s in vain until {what}{stories}")
        time.sleep(interval)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago; another process may take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(pid: int, port: int) -> bool:
    """Whether the process `pid` itself listens on the TCP port `port`."""
    wanted = f":{port:04X}"
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        inodes |= {row[9] for row in rows if row[1].endswith(wanted) and row[3] == LISTENING}
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith("socket:[") and link[8:-1] in inodes:
                    return True
    except OSError:
        return False
    return False


def _is_up(process: Process, port: int, ready: Callable[[int], bool]) -> bool:
    return listens(process.pid, port) and ready(port)


def start_listening(
    launch: Callable[[int], Process],
    ready: Callable[[int], bool],
    what: str,
    *,
    port: int | None = None,
    timeout: float = 30.0,
) -> tuple[Process, int]:
    """Start a server with `launch(port)`, wait until `ready(port)`; return it and its port.

    Without `port` a free one is chosen, and another when somebody took it in between. That `ready`
    was answered by somebody else on that port does not count.

    Raises:
        StartError: it did not come up; with `port` given also when that port is taken.
    """
    tries = 1 if port is not None else PORT_TRIES
    while True:
        tries -= 1
        chosen = port if port is not None else free_port()
        process = launch(chosen)
        try:
            up = partial(_is_up, process, chosen, ready)
            wait_until(up, timeout, what, processes=[process])
            return process, chosen
        except StartError:
            process.terminate(1.0)
            if tries == 0 or PORT_TAKEN not in process.output():
                raise
        except BaseException:
            process.terminate(1.0)
            raise
