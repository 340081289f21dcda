"""A rank for the fork server's tests: does what its arguments say."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch


def preload() -> None:
    """Nothing: importing this module is enough."""


def tell() -> dict[str, Any]:
    """Return what a process is made of, without what any two processes differ in."""
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "arguments": sys.argv,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "path": sys.path,
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "handlers": {
            n: str(getattr(signal.getsignal(n), "__name__", signal.getsignal(n)))
            for n in range(1, 32)
        },
        "umask": umask,
        "open files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "niceness": os.nice(0),
        "leads session": os.getsid(0) == os.getpid() == os.getpgrp(),
        "line buffering": sys.stdout.line_buffering,
        "threads": len(os.listdir("/proc/self/task")),
    }


def draw() -> dict[str, Any]:
    """Return what no two processes should have in common."""
    return {
        "random": random.random(),
        "numpy": float(np.random.rand()),
        "torch": float(torch.rand(1)),
        "authkey": bytes(multiprocessing.current_process().authkey).hex(),
        "name": next(tempfile._get_candidate_names()),  # type: ignore[attr-defined]
    }


def main(argv: list[str]) -> int:
    """Do it."""
    what, *more = argv
    if what == "tell":
        print(json.dumps(tell()))
    elif what == "draw":
        print(json.dumps(draw()))
    elif what == "exit":
        sys.stdout.write("last words")  # not flushed, no end of line
        return int(more[0])
    elif what == "raise":
        raise LookupError("on purpose")
    elif what == "die":
        number = int(more[0])
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    elif what == "listen":
        waited = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
        signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        print("listening", flush=True)
        while True:
            info = signal.sigwaitinfo(waited)
            print(json.dumps([info.si_signo, info.si_pid]), flush=True)
    elif what == "stay":
        child = subprocess.Popen(["sleep", "600"])
        print(json.dumps([os.getpid(), child.pid]), flush=True)
        time.sleep(600)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
