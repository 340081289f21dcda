"""The guard: cleans up after a driver that was killed (`python -m tailwatch.processes.guard`).

Contract: it watches the driver (a pidfd; polling where the kernel has none) from a session of its
own and shrugs off SIGINT, SIGHUP and SIGTERM. When the driver ends without having written `done`
to the guard's standard input, within 30 s and in this order:

1. it runs the command after `--then` (the undo of every open ledger entry), at most 20 s;
2. it kills every process that carries the run's token;
3. it removes the run's scratch directories.

After `done` it does 2 and 3 only. Exit status: 0 nothing was left over, 1 something was and is gone
now, 5 something could not be undone, killed or removed. What it does stands in
`RUN/logs/guard.log`; a full disk costs only that log.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tailwatch.processes.guarding import CLEANED, NOT_CLEANED, NOTHING_LEFT
from tailwatch.processes.identity import open_pidfd, same_process
from tailwatch.processes.scratch import remove_scratch
from tailwatch.processes.sweep import find_by_token, kill_for_sure

DONE = b"done"
WATCHING = b"watching\n"
THEN_SECONDS = 20.0
KILL_SECONDS = 5.0
# How often to look when nothing wakes us: without a pidfd, and with one (to be doubly sure).
POLL_SECONDS = 0.1
PIDFD_SECONDS = 2.0


class Log:
    """Appends lines to a file; what cannot be written is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{stamp} {text}\n")
        except OSError:
            return


def open_entries(ledger: Path) -> list[str]:
    """Return the ids of the ledger entries that are not undone; a line cut short counts as one."""
    try:
        lines = ledger.read_bytes().splitlines()
    except OSError:
        return []
    states: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            states[str(entry["id"])] = str(entry["state"])
        except (ValueError, KeyError, TypeError):
            states[f"line {number}"] = "unreadable"
    return [name for name, state in states.items() if state != "undone"]


def wait_for_driver(pid: int, ticks: int) -> bool:
    """Wait until the driver releases the guard (True) or ends without doing so (False)."""
    control = sys.stdin.fileno()
    os.set_blocking(control, False)
    pidfd = open_pidfd(pid)
    poller = select.poll()
    poller.register(control, select.POLLIN)
    if pidfd is not None:
        poller.register(pidfd, select.POLLIN)
    received = b""
    while True:
        # Asked before the read: whatever a driver that has ended ever wrote is in the pipe by now.
        alive = same_process(pid, ticks)
        try:
            chunk = os.read(control, 64)
        except BlockingIOError:
            chunk = None
        if chunk:
            received += chunk
        if DONE in received:
            return True
        if not alive:
            return False
        if chunk == b"":
            # End of file says nothing: a child may hold the pipe, or the driver let go of it.
            with contextlib.suppress(KeyError):
                poller.unregister(control)
        poller.poll((POLL_SECONDS if pidfd is None else PIDFD_SECONDS) * 1000)


def run_then(argv: Sequence[str], log: Log) -> bool:
    """Run the undo command with its own time limit; True when it exits with 0."""
    if not argv:
        return True
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        log(f"undo: cannot start {argv[0]}: {error.strerror}")
        return False
    try:
        _, errors = process.communicate(timeout=THEN_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log(f"undo: not done after {THEN_SECONDS:g} s, killed")
        return False
    for line in errors.decode("utf-8", "replace").splitlines():
        log(f"undo: {line}")
    log(f"undo: exit status {process.returncode}")
    return process.returncode == 0


def clean_up(arguments: argparse.Namespace, log: Log) -> int:
    """Kill what carries the token and remove the scratch directories; return the exit status."""
    status = NOTHING_LEFT
    left = find_by_token(arguments.token)
    if left:
        survived = kill_for_sure(arguments.token, deadline_seconds=KILL_SECONDS)
        log(f"killed {sorted(left)}" + (f", survived: {survived}" if survived else ""))
        status = NOT_CLEANED if survived else CLEANED
    for path in arguments.scratch:
        existed = path.exists()
        reason = remove_scratch(path, arguments.token, also_below=[arguments.run])
        if reason:
            log(f"scratch: {reason}")
            status = NOT_CLEANED
        elif existed:
            log(f"scratch: removed {path}")
            status = max(status, CLEANED)
    return status


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tailwatch.processes.guard")
    parser.add_argument("--driver", type=int, required=True, help="pid to watch")
    parser.add_argument("--driver-ticks", type=int, required=True, help="its start ticks")
    parser.add_argument("--run", type=Path, required=True, help="run directory")
    parser.add_argument("--token", required=True, help="token of the run")
    parser.add_argument("--ledger", type=Path, required=True, help="undo ledger, for the log")
    parser.add_argument("--scratch", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--then", nargs=argparse.REMAINDER, default=[], metavar="ARGV")
    return parser.parse_args(argv)


def _shrug(_signal: int, _frame: FrameType | None) -> None:
    """Do nothing. Not SIG_IGN, which the undo command would inherit."""


def main(argv: Sequence[str] | None = None) -> int:
    """Watch, and clean up; return the exit status."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, _shrug)
    arguments = _parse(argv)
    log = Log(arguments.run / "logs" / "guard.log")
    os.write(sys.stdout.fileno(), WATCHING)
    log(f"watching pid {arguments.driver}")
    if wait_for_driver(arguments.driver, arguments.driver_ticks):
        status = clean_up(arguments, log)
        log(f"released, status {status}")
        return status
    log(f"the driver ended; open in the ledger: {open_entries(arguments.ledger)}")
    undone = run_then(arguments.then, log)
    status = clean_up(arguments, log)
    if not undone:
        status = NOT_CLEANED
    log(f"done, status {status}; open in the ledger: {open_entries(arguments.ledger)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
