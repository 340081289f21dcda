"""The launcher of one node: torchrun's elastic agent, taught to let nodes leave and return.

Contract: the rendezvous store is a process outside all nodes, so any node can leave. Ranks come
from a fork server that this process keeps (`forkserver`), so a restart costs no imports. An order
or SIGTERM makes the node leave after a checkpoint; a node that comes back makes the others
checkpoint first (order `rejoin`), so a change of membership loses no step. Death of this process
kills its ranks.

torch 2.13 specifics, with their reasons: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because otherwise
the next attempt reads the last one's gloo addresses; rendezvous keep-alive of 1 s x 4 and last call
of 1 s instead of 5 s x 3 and 30 s; leaving runs the rendezvous' own exit operation, because the
public `shutdown` closes the rendezvous for the nodes that stay.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous import registry as rendezvous_registry
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    _RendezvousExitOp,
)

from tailwatch import control
from tailwatch.control import Order
from tailwatch.records import Event
from tailwatch.runs import RunDirectory
from tailwatch.trainer.config import TrainerConfig, config_from
from tailwatch.trainer.launch.agent import PromptAgent, meet_promptly
from tailwatch.trainer.launch.codes import HOPELESS, LEFT, REFORM
from tailwatch.trainer.launch.forkserver import ForkServer
from tailwatch.trainer.launch.place import RankPlace, submit_leave

# Restarts in a row after which no newer checkpoint was verified: more of them would not help.
FRUITLESS_RESTARTS = 8
RANK_MODULE = "tailwatch.trainer.launch.rank"


class NodeLauncher(PromptAgent):
    """One node's agent. `leave` may be called from a signal handler."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs: DefaultLogsSpecs,
        run: RunDirectory,
        node: str,
        leave_seconds: float,
        ranks: ForkServer,
    ) -> None:
        super().__init__(spec, logs, ranks)
        self.run_directory = run
        self.node = node
        self._leave_seconds = leave_seconds
        self._verified_step = -1
        self._fruitless = 0
        self._leave_by: float | None = None
        self._rejoin_by: float | None = None

    def leave(self, by: str) -> None:
        """Let the ranks checkpoint and go, then leave the rendezvous."""
        if self._leave_by is None:
            self._leave_by = time.monotonic() + self._leave_seconds
            submit_leave(self.run_directory, self.node, by=by, seconds=self._leave_seconds)

    def _invoke_run(self, role: str = "default") -> RunResult:
        group = self._worker_group
        self._initialize_workers(group)
        while True:
            self.wait_for_an_end(group.spec.monitor_interval)
            result: RunResult = self._monitor_workers(group)
            group.state = result.state
            if result.state == WorkerState.SUCCEEDED:
                return result
            if result.state in (WorkerState.UNHEALTHY, WorkerState.FAILED):
                codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
                if LEFT in codes.values() or self._leave_by is not None:
                    return self._left()
                if set(codes.values()) != {REFORM}:
                    self._report_failure(codes)
                    if HOPELESS in codes.values() or self._too_many_restarts():
                        self._stop_workers(group)
                        return result
                self._rejoin_by = None
                self._restart_workers(group)
            elif self._leave_by is not None and time.monotonic() > self._leave_by:
                return self._left()
            else:
                self._welcome()

    def _left(self) -> RunResult:
        """Stop what is left of the ranks and tell the rendezvous that this node is gone."""
        self._stop_workers(self._worker_group)
        handler = self._rdzv_handler
        if isinstance(handler, DynamicRendezvousHandler):
            handler._stop_heartbeats()
            deadline = handler._get_deadline(handler._settings.timeout.close)
            handler._op_executor.run(_RendezvousExitOp(), deadline)
        self._event("leave", {})
        gone = {worker.global_rank: None for worker in self._worker_group.workers}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=gone)

    def _welcome(self) -> None:
        """When a node waits to join, have all ranks checkpoint first; force it only when late."""
        if not self._rdzv_handler.num_nodes_waiting():
            return
        if self._rejoin_by is None:
            self._rejoin_by = time.monotonic() + self._leave_seconds
            if self._worker_group.group_rank != 0:
                return  # one order is enough; by force, later, may anybody
            order = Order(
                id=control.new_order_id(),
                kind="rejoin",
                by=f"launcher/{self.node}",
                reason="a node waits to join",
                deadline_ns=time.time_ns() + int(self._leave_seconds * 1e9),
            )
            control.submit(self.run_directory.orders, order)
        elif time.monotonic() > self._rejoin_by:
            self._rejoin_by = None
            self._restart_workers(self._worker_group)

    def _too_many_restarts(self) -> bool:
        verified = max(
            (
                e.step or 0
                for e in self.run_directory.read_events()
                if e.kind == "checkpoint_verified"
            ),
            default=-1,
        )
        self._fruitless = self._fruitless + 1 if verified <= self._verified_step else 0
        self._verified_step = verified
        return self._fruitless >= FRUITLESS_RESTARTS

    def _report_failure(self, codes: dict[int, int]) -> None:
        self._event("failure", {"exit_codes": {str(rank): code for rank, code in codes.items()}})

    def _event(self, kind: Any, detail: dict[str, Any]) -> None:
        attempts = self.run_directory.read_attempts()
        self.run_directory.append_event(
            Event(
                run=self.run_directory.name,
                attempt=attempts[-1].attempt if attempts else 0,
                time_ns=time.time_ns(),
                kind=kind,
                source=f"launcher/{self.node}",
                node=self.node,
                detail=detail,
            )
        )


def build_launcher(
    place: RankPlace, config: TrainerConfig, *, store: str, ranks: int, nodes: str
) -> NodeLauncher:
    """Return the launcher of one node; `nodes` is `MIN:MAX`, `store` is `HOST:PORT`."""
    least, most = (int(part) for part in nodes.split(":"))
    for count in range(least, most + 1):
        config.check(count * ranks)  # a node that leaves must not end the job
    run = RunDirectory(place.run)
    fork_server = ForkServer(RANK_MODULE, run.logs / f"fork-server-{place.node}.log")
    fork_server.ensure()
    command, *arguments = fork_server.command(place.arguments())
    meet_promptly(most)
    rendezvous = RendezvousParameters(
        backend="c10d",
        endpoint=store,
        run_id=run.name,
        min_nodes=least,
        max_nodes=most,
        local_addr="127.0.0.1" if store.startswith("127.") else None,
        is_host=False,
        last_call_timeout=1,
        keep_alive_interval=1,
        keep_alive_max_attempt=4,
        read_timeout=10,
        join_timeout=60,
        close_timeout=5,
    )
    spec = WorkerSpec(
        role="trainer",
        local_world_size=ranks,
        entrypoint=command,
        args=tuple(arguments),
        rdzv_handler=rendezvous_registry.get_rendezvous_handler(rendezvous),
        max_restarts=FRUITLESS_RESTARTS,  # counted by our own loop
        monitor_interval=0.1,
    )
    logs = run.logs / place.node
    logs.mkdir(parents=True, exist_ok=True)
    specs = DefaultLogsSpecs(str(logs), redirects=Std.ALL)
    return NodeLauncher(spec, specs, run, place.node, config.leave_seconds, fork_server)


def main(argv: list[str]) -> int:
    """Run one node's launcher until its ranks finish or it leaves."""
    parser = argparse.ArgumentParser(prog="python -m tailwatch.trainer.launch.node")
    parser.add_argument("--run", type=Path, required=True, help="run directory")
    parser.add_argument("--node", required=True, help="name of this node")
    parser.add_argument("--store", required=True, help="HOST:PORT of the rendezvous store")
    parser.add_argument("--ranks", type=int, required=True, help="ranks on this node")
    parser.add_argument("--nodes", default="1:2", help="MIN:MAX nodes")
    parser.add_argument("--rings", type=Path, required=True, help="ring directory (tmpfs)")
    parser.add_argument("--doorbell", type=Path, required=True, help="the node agent's socket")
    parser.add_argument(
        "--from-scratch", action="store_true", help="start again when no checkpoint is valid"
    )
    arguments = parser.parse_args(argv)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # Or torch puts a handler of its own over ours and kills the ranks of a node that is evicted.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    place = RankPlace(
        run=arguments.run.resolve(),
        node=arguments.node,
        launcher_pid=os.getpid(),
        rings=arguments.rings,
        doorbell=arguments.doorbell,
        from_scratch=arguments.from_scratch,
    )
    manifest = place.run / "manifest.json"
    config = config_from(msgspec.json.decode(manifest.read_bytes())["trainer"], str(manifest))
    launcher = build_launcher(
        place, config, store=arguments.store, ranks=arguments.ranks, nodes=arguments.nodes
    )

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        launcher.leave("SIGTERM")

    signal.signal(signal.SIGTERM, on_sigterm)
    result = launcher.run()
    return 1 if result is not None and result.is_failed() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
