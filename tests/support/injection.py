"""Faults of the disk in a process that saves: at its n-th system call, below all of its libraries.

`run_injected` forks a child of this process (torch is imported already) and attaches strace, whose
injection makes chosen calls fail, lie, wait, or kill. `CALLS` are those that a save changes the
disk by. Where strace is not installed or may not trace, `unavailable` says so.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

CALLS = "openat,write,pwrite64,ftruncate,fsync,rename,mkdir,unlink,unlinkat,rmdir"


@functools.cache
def unavailable() -> str:
    """Return why calls cannot be injected here; empty when they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(
        ["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip() if tried.returncode else ""


class Outcome(NamedTuple):
    """How a child ended: its exit code, or minus its signal; and how many calls were injected."""

    code: int
    hits: int


def run_injected(function: Callable[..., Any], *arguments: Any, inject: str) -> Outcome:
    """Run a function in a child under an injection (`fsync:error=EIO:when=3`).

    The exit code is 0 when the function returned and 1 when it raised.
    """
    go, gone = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(gone)
        code = 1
        try:
            os.read(go, 1)
            function(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)
    os.close(go)
    calls = inject.partition(":")[0]
    log = tempfile.NamedTemporaryFile(mode="r")  # noqa: SIM115
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-o", log.name, "-e", f"trace={calls}"),
            *("-e", f"inject={inject}", "-p", str(child)),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    try:
        line = tracer.stderr.readline()
        assert "attached" in line, line
        os.write(gone, b"g")
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(gone)
        tracer.wait(30)
        tracer.stderr.close()
    with log:
        hits = sum("INJECTED" in line for line in log)
    return Outcome(os.waitstatus_to_exitcode(status), hits)
