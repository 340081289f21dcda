"""A fork server and shims, started as a launcher and torchrun start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from support.checkout import ROOT
from tailwatch.processes import TOKEN_VARIABLE, start_ticks
from tailwatch.trainer.launch.forkserver import ForkServer

RANK = "support.forked_rank"
Environment = dict[str, str]


def rank_environment(**changes: str) -> Environment:
    """Return the environment of a rank."""
    return {
        **{name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE},
        "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1", "RANK": "3", **changes,
    }  # fmt: skip


class Node:
    """A fork server and the shims that a test starts, as torchrun would."""

    def __init__(self, log: Path, environment: Environment, module: str = RANK) -> None:
        self.server = ForkServer(module, log)
        self.log = log
        self.environment = environment
        self.ensure()

    def ensure(self) -> int:
        """Start the server as a launcher with that environment would; return its pid."""
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(self.environment)
        try:
            self.server.ensure()
        finally:
            os.environ.clear()
            os.environ.update(before)
        assert self.server.pid is not None
        return self.server.pid

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a shim."""
        return subprocess.Popen(
            self.server.command(list(arguments)),
            **{
                "env": self.environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                "text": True, "start_new_session": True, **options,
            },
        )  # fmt: skip

    def run(self, *arguments: str, **options: Any) -> tuple[int, str, str]:
        """Return status, stdout and stderr of a rank."""
        shim_process = self.start(*arguments, **options)
        out, err = shim_process.communicate(timeout=90)
        return shim_process.returncode, out, err

    def stay(self) -> tuple[subprocess.Popen[str], list[tuple[int, int]]]:
        """Return the shim of a rank that stays, and identities of the rank and of its child."""
        shim_process = self.start("stay")
        assert shim_process.stdout is not None
        pids = json.loads(shim_process.stdout.readline())
        return shim_process, [(pid, start_ticks(pid) or 0) for pid in pids]

    def close(self) -> None:
        """Kill the server."""
        if self.server.pid is not None:
            os.kill(self.server.pid, signal.SIGKILL)
