"""torchrun's elastic agent, with ranks from a fork server and quick about a fault.

Contract: what `LocalElasticAgent` does, and in addition:

- the end of a rank is noticed when it happens, not at the next look;
- the ranks that are left get `STOP_SECONDS` to end, not torchrun's 30;
- an error file that its rank could not finish ends no launcher;
- of a failure only the ranks that ended by themselves are told, not those that it then stopped;
- agents that meet look for each other every `poll_seconds(nodes)`, not every second;
- what an interruption cost so far is in the environment of the next ranks (`restarting`).

The pids torchrun knows are those of shims; a rank's own is in its attempt.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from subprocess import Popen
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from tailwatch.trainer.launch.codes import REFORM
from tailwatch.trainer.launch.forkserver import ForkServer
from tailwatch.trainer.launch.restarting import Cause, Interruption

# A rank that is stopped or deep in a collective does not deserve torchrun's 30 s.
STOP_SECONDS = 3


def poll_seconds(nodes: int) -> float:
    """Return how often an agent looks whether the others have come.

    So that the store is asked 100 times a second at most, up to 100 nodes.
    """
    return min(max(0.05, nodes / 100), 1.0)


def meet_promptly(nodes: int) -> None:
    """Have torch's rendezvous look every `poll_seconds`; it has no setting for it."""

    def delay(seconds: float | tuple[float, float]) -> None:
        longest = random.uniform(*seconds) if isinstance(seconds, tuple) else seconds
        time.sleep(longest * poll_seconds(nodes))

    dynamic_rendezvous._delay = delay


def drop_torn(error_files: Iterable[str]) -> None:
    """Remove error files that hold no whole JSON: torch raises when it reads one.

    A rank that is stopped while it writes its own leaves one behind.
    """
    for path in map(Path, error_files):
        if not path.is_file():  # never written, or /dev/null
            continue
        try:
            json.loads(path.read_bytes())
        except ValueError:
            path.unlink()


class PromptAgent(LocalElasticAgent):
    """The agent of one node; `spec.entrypoint` and `spec.args` are a command of `ranks`."""

    def __init__(self, spec: WorkerSpec, logs: DefaultLogsSpecs, ranks: ForkServer) -> None:
        super().__init__(spec, logs, exit_barrier_timeout=0)
        self._ranks = ranks
        self._met_ns = 0
        self._interruption: Interruption | None = None

    def wait_for_an_end(self, seconds: float) -> None:
        """Return when a rank has ended, and after `seconds` anyway."""
        poller = select.poll()
        pidfds = [os.pidfd_open(p.pid) for p in self._shims().values() if p.returncode is None]
        try:
            for pidfd in pidfds:
                poller.register(pidfd, select.POLLIN)
            poller.poll(seconds * 1000)
        finally:
            for pidfd in pidfds:
                os.close(pidfd)

    def _shims(self) -> dict[int, Popen[bytes]]:
        context = self._pcontext
        assert isinstance(context, SubprocessContext)
        return {rank: handler.proc for rank, handler in context.subprocess_handlers.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = {rank: shim.poll() for rank, shim in self._shims().items()}
        failed = {rank: code for rank, code in codes.items() if code}
        if not failed and None in codes.values():
            return RunResult(state=WorkerState.HEALTHY)
        if failed:
            membership = set(failed.values()) == {REFORM}
            self._interrupt("membership" if membership else "failure")
            self._stop_workers(worker_group)
            assert self._pcontext is not None
            drop_torn(self._pcontext.error_files.values())
        result: RunResult = super()._monitor_workers(worker_group)
        workers = worker_group.workers
        by_themselves = {workers[rank].global_rank for rank in failed}
        result.failures = {r: f for r, f in result.failures.items() if r in by_themselves}
        return result

    def _interrupt(self, cause: Cause) -> None:
        now = time.time_ns()
        ended = self._ranks.first_end_ns(self._met_ns) if cause == "failure" else None
        self._interruption = Interruption(
            cause=cause, ended_ns=min(ended or now, now), noticed_ns=now
        )

    def _stop_workers(self, worker_group: Any) -> None:
        if self._interruption is None:
            self._interrupt("membership")
        self._shutdown(signal.SIGTERM, timeout=STOP_SECONDS)
        assert self._interruption is not None
        self._interruption.stopped_ns = time.time_ns()

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._ranks.ensure()
        super()._rendezvous(worker_group)
        self._met_ns = time.time_ns()
        if self._interruption is not None:
            self._interruption.met_ns = self._met_ns
        Interruption.hand_over(self._interruption)
        self._interruption = None
