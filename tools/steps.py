"""Runs one command of the set-up: a sign of life while it works, the reason when it fails.

Contract: `run` returns when the command has succeeded, else raises `StepFailed` with which part,
why (its last lines) and what to do instead. Its whole output lies in a log file. Standard library
only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SIGN_OF_LIFE_SECONDS = 10.0
LAST_LINES = 12


class StepFailed(Exception):
    """A part of the set-up did not work; its text says which, why, and what to do."""


def say(text: str) -> None:
    """Print a line of progress; stdout stays free for results."""
    print(text, file=sys.stderr, flush=True)


def run(
    part: str,
    command: Sequence[str | Path],
    *,
    log: Path,
    advice: str,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `command`, saying `part: 40 s ...` every ten seconds.

    Args:
        part: what is being done, as people would say it ("building prometheus").
        log: receives stdout and stderr, and stays.
        advice: what to do or to install instead, printed on failure.
        environment: variables on top of the present ones.

    Raises:
        StepFailed: the command cannot be started or exits with anything but 0.
    """
    started = time.monotonic()
    next_sign = started + SIGN_OF_LIFE_SECONDS
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                [os.fspath(argument) for argument in command],
                cwd=directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise StepFailed(f"{part} failed: {error}\n  {advice}") from error
        try:
            while (status := _wait(process, next_sign - time.monotonic())) is None:
                say(f"{part}: {time.monotonic() - started:.0f} s ...")
                next_sign += SIGN_OF_LIFE_SECONDS
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if status:
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        why = "\n".join(f"  | {line}" for line in lines)
        raise StepFailed(
            f"{part} failed (exit status {status}), the last lines were:\n{why}\n"
            f"  all of it: {log}\n  {advice}"
        )


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(timeout=max(seconds, 0.01))
    except subprocess.TimeoutExpired:
        return None


@contextlib.contextmanager
def only_one(path: Path, doing: str) -> Iterator[None]:
    """Hold a lock on an existing file; a second caller says that it waits, and waits."""
    fd = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is {doing}; waiting for it")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
