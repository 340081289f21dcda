"""The entry of one rank: `main`, in a fork of its node's fork server or in a process of its own.

Contract: claims the attempt (rank 0, O_EXCL), restores the newest checkpoint that verifies, trains,
and ends with an exit code that says why. SIGTERM from anybody but the launcher is an order to leave
for the whole node: any eviction by anybody ends in a checkpoint. SIGTERM from the launcher means
that this attempt is over.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
import threading
import time

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from tailwatch.control import Order
from tailwatch.errors import UsageError
from tailwatch.files import write_durably
from tailwatch.integrity import Policy
from tailwatch.processes import start_ticks
from tailwatch.records import Event, EventKind
from tailwatch.ring import RingWriter
from tailwatch.runs import Attempt, RankProcess, RunDirectory
from tailwatch.trainer.checkpoint import CheckpointError, CheckpointStore, MemoryTier
from tailwatch.trainer.config import TrainerConfig, config_from
from tailwatch.trainer.ep import GlooExchange
from tailwatch.trainer.launch.codes import HOPELESS, LEFT, REFORM
from tailwatch.trainer.launch.place import RankPlace, submit_leave
from tailwatch.trainer.launch.restarting import Arrival, Restart
from tailwatch.trainer.loop import Trainer
from tailwatch.trainer.orders import RankOrders
from tailwatch.trainer.recorder import StepRecorder
from tailwatch.trainer.state import TrainerState, build_model

COLLECTIVE_SECONDS = 300.0


def preload() -> None:
    """Do once, in the fork server, what costs each rank the same: imports, most of all."""
    # Making an optimizer imports a third of torch (1.5 s).
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])


@record  # an exception is left where torchrun looks for it
def main(argv: list[str]) -> int:
    """Run one rank of one attempt."""
    arrival = Arrival.now()
    place = RankPlace.of(argv)
    manifest = place.run / "manifest.json"
    config = config_from(msgspec.json.decode(manifest.read_bytes())["trainer"], str(manifest))
    run_rank(place, config, arrival)
    return 0


def run_rank(place: RankPlace, config: TrainerConfig, arrival: Arrival) -> None:
    """Run one rank of one attempt; returns after the last step, otherwise ends the process."""
    run = RunDirectory(place.run)
    _leave_on_sigterm(place, run, config.leave_seconds)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=COLLECTIVE_SECONDS))
    try:
        outcome = _Attempt(place, config, run, arrival).train()
    except (CheckpointError, UsageError) as error:
        print(f"rank {dist.get_rank()}: {error}", file=sys.stderr, flush=True)
        os._exit(HOPELESS)
    if outcome == "finished":
        dist.destroy_process_group()
        return
    # Peers may already be gone: no collective shutdown, the ring and the checkpoint are safe.
    os._exit(LEFT if outcome == "left" else REFORM)


def _leave_on_sigterm(place: RankPlace, run: RunDirectory, seconds: float) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while True:
            info = signal.sigwaitinfo({signal.SIGTERM})
            if info.si_pid == place.launcher_pid:
                os._exit(1)
            by = f"SIGTERM from pid {info.si_pid}"
            submit_leave(run, place.node, by=by, seconds=seconds)

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


class _Attempt:
    """Puts the parts of one attempt together on one rank."""

    def __init__(
        self, place: RankPlace, config: TrainerConfig, run: RunDirectory, arrival: Arrival
    ) -> None:
        self.place, self.config, self.run = place, config, run
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        config.check(self.world_size)
        self.claim, self.restart = self._claim(arrival)
        per_rank = config.experts // self.world_size
        owned = range(self.rank * per_rank, (self.rank + 1) * per_rank)
        ring = RingWriter(
            place.rings,
            run=run.name,
            attempt=self.claim.attempt,
            rank=self.rank,
            world_size=self.world_size,
            node=place.node,
            doorbell=place.doorbell,
        )
        self.recorder = StepRecorder(
            ring,
            run=run.name,
            attempt=self.claim.attempt,
            rank=self.rank,
            world_size=self.world_size,
            node=place.node,
            configuration=config.configuration(self.world_size),
            first_expert=owned[0],
        )
        self.state = TrainerState(build_model(config, owned))

    def _claim(self, arrival: Arrival) -> tuple[Attempt, Restart]:
        """Agree on the attempt: its number is free in the run directory, and everybody is in it."""
        number = [0]
        if self.rank == 0:
            while True:
                number[0] += 1
                path = self.run.attempts / f"{number[0]:04d}.json"
                try:
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
                    break
                except FileExistsError:
                    continue
        dist.broadcast_object_list(number, src=0)
        me = RankProcess(
            rank=self.rank,
            node=self.place.node,
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()) or 0,
        )
        gathered: list[tuple[RankProcess, Arrival] | None] = [None] * self.world_size
        dist.all_gather_object(gathered, (me, arrival))
        everybody = [one for one in gathered if one is not None]
        claim = Attempt(
            attempt=number[0],
            world_size=self.world_size,
            started_ns=time.time_ns(),
            ranks=[process for process, _ in everybody],
        )
        return claim, Restart([arrived for _, arrived in everybody])

    def emit(self, kind: EventKind, step: int | None, detail: dict[str, object]) -> None:
        """Publish an event of rank 0, in the ring and in the run directory."""
        if self.rank == 0:
            self._append(self.recorder.event(kind, step=step, detail=detail))

    def _append(self, event: Event) -> None:
        try:
            self.run.append_event(event)
        except OSError as error:
            # A full disk costs the line in events.jsonl; the event is in the ring all the same.
            print(f"{self.run.events}: {error}", file=sys.stderr, flush=True)

    def answer(self, kind: EventKind, order: Order, reason: str = "") -> None:
        """Publish the answer to an order."""
        if self.rank == 0:
            detail: dict[str, object] = {"order": order.kind, "by": order.by}
            if reason:
                detail["reason"] = reason
            event = self.recorder.event(kind, step=self.state.step, detail=detail)
            self._append(msgspec.structs.replace(event, order=order.id, node=order.node))

    def train(self) -> str:
        """Restore, say so, and train to an outcome."""
        claim = self.claim
        checkpoints = self._checkpoints()
        self.restart.done()
        self.emit("start" if claim.attempt == 1 else "restart", None, {"world": self.world_size})
        restored = checkpoints.load(self.state.tensors(), from_scratch=self.place.from_scratch)
        if restored is not None:
            self.state.step, self.state.iteration = restored.step, restored.iteration
        if self.rank == 0:
            claim.resumed_from_step = restored.step if restored else None
            path = self.run.attempts / f"{claim.attempt:04d}.json"
            write_durably(path, msgspec.json.encode(claim))
        orders = RankOrders(
            self.run.orders,
            self.rank,
            nodes={process.node for process in claim.ranks},
            answered=self._answered() if self.rank == 0 else (),
            answer=self.answer,
        )
        orders.spread()  # faults in force go on
        self.restart.done()
        self.recorder.after_first_step = self._resumed
        outcome = Trainer(
            self.config,
            node=self.place.node,
            recorder=self.recorder,
            exchange=GlooExchange(self.recorder),
            checkpoints=checkpoints,
            orders=orders,
            answer=self.answer,
            emit=self.emit,
            attempt=claim.attempt,
            state=self.state,
        ).train()
        if outcome == "finished":
            checkpoints.close()
            self.emit("finish", self.state.step, {})
        self.recorder.close()
        return outcome

    def _resumed(self, step: int) -> None:
        """Say what the restart cost, now that a step is done."""
        self.restart.done()
        detail = self.restart.detail()
        if detail is not None:
            self.emit("resumed", step, detail)

    def _checkpoints(self) -> CheckpointStore:
        config = self.config
        return CheckpointStore(
            self.run,
            emit=self.emit,
            policy=Policy(
                keep_last=config.checkpoint_keep,
                keep_every=config.checkpoint_keep_every,
                max_bytes=config.checkpoint_max_bytes,
                max_inodes=config.checkpoint_max_inodes,
            ),
            mesh={"dp": self.world_size, "ep": self.world_size},
            memory=MemoryTier(self.run) if config.checkpoint_memory else None,
        )

    def _answered(self) -> set[str]:
        kinds = {"order_done", "order_refused", "order_expired"}
        return {e.order for e in self.run.read_events() if e.kind in kinds and e.order}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
