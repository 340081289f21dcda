"""A made-up job for made-up evidence: records, events and attempts of four ranks on two nodes.

Contract: everything follows from the seed; wall time starts at `START_NS` and only the job moves
it. The step times alternate between long (with a rollout) and short, with noise and rare pauses,
so that the quantiles of a window are those of a real loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from tailwatch.records import Event, EventKind, StepRecord
from tailwatch.runs import Attempt, RankProcess

START_NS = 1_796_119_200_000_000_000  # 2026-12-01T10:00:00Z
MONO_OFFSET_NS = 1_796_000_000_000_000_000
RUN = "demo-20261201-100000-5eed"
WORKLOAD = "moe-grpo-tiny"
NODES = ("node-0", "node-1")
SFT_STEPS = 30
CHECKPOINT_EVERY = 25
SECOND = 1_000_000_000


def configuration(world_size: int) -> str:
    """The configuration label of the made-up job at a world size."""
    return f"{WORKLOAD}/ep{world_size}"


def checkpoint_name(step: int) -> str:
    """The directory name of the checkpoint of a step."""
    return f"step-{step:08d}"


def loss_of(step: int, world_size: int) -> float:
    """A loss that depends on nothing but the step and the world size, as a replayed step's does."""
    noise = int.from_bytes(hashlib.sha256(f"{step}/{world_size}".encode()).digest()[:6]) / 2**48
    return 2.5 * float(np.exp(-step / 600)) + 0.2 * noise


class Job:
    """The job while it runs: `now_ns` is the wall clock, `step` the last finished step."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.now_ns = START_NS
        self.step = 0
        self.delay: tuple[int, float] | None = None  # a rank and how much later it arrives
        self.drag = 0.0  # seconds by which every rank's step is longer
        self.records: list[StepRecord] = []
        self.events: list[Event] = []
        self.attempts: list[Attempt] = []
        self.p99: list[tuple[float, float]] = []  # Unix seconds, a smoothed step time
        self._recent: list[float] = []

    @property
    def attempt(self) -> Attempt:
        """The attempt that runs now."""
        return self.attempts[-1]

    def pause(self, seconds: float) -> None:
        """Let time pass in which no step runs."""
        self.now_ns += int(seconds * SECOND)

    def event(
        self, kind: EventKind, source: str = "rank/0", at_ns: int | None = None, **fields: object
    ) -> None:
        """Note an event of the current attempt."""
        time_ns = self.now_ns if at_ns is None else at_ns
        event = Event(
            run=RUN,
            attempt=self.attempt.attempt if self.attempts else 0,
            time_ns=time_ns,
            kind=kind,
            source=source,
            **fields,  # type: ignore[arg-type]
        )
        self.events.append(event)

    def start(self, nodes: Sequence[str] = NODES, resume_from: int | None = None) -> Attempt:
        """Start the next attempt on `nodes`, from the checkpoint of a step or from nothing."""
        number = len(self.attempts) + 1
        ranks = [
            RankProcess(
                rank=2 * i + k,
                node=node,
                pid=4000 + 100 * number + 10 * NODES.index(node) + k,
                start_ticks=90_000 + 1_000 * number + k,
            )
            for i, node in enumerate(nodes)
            for k in range(2)
        ]
        attempt = Attempt(
            attempt=number,
            world_size=len(ranks),
            started_ns=self.now_ns,
            resumed_from_step=resume_from,
            ranks=ranks,
        )
        self.attempts.append(attempt)
        self.event("start" if number == 1 else "restart", detail={"world_size": len(ranks)})
        if resume_from is not None:
            self.step = resume_from
            self.event(
                "restore",
                step=resume_from,
                detail={"checkpoint": checkpoint_name(resume_from), "verified": True},
            )
        self.pause(0.4)
        return attempt

    def checkpoint(self) -> None:
        """Commit and verify a checkpoint of the last finished step."""
        detail = {"checkpoint": checkpoint_name(self.step)}
        kinds: tuple[EventKind, ...] = (
            "checkpoint_staged",
            "checkpoint_written",
            "checkpoint_committed",
            "checkpoint_verified",
        )
        for i, kind in enumerate(kinds):
            self.event(kind, at_ns=self.now_ns + i * 5_000_000, step=self.step, detail=detail)

    def run_steps(self, count: int) -> None:
        """Run `count` steps on all ranks of the current attempt."""
        first_of_attempt = self.step
        for _ in range(count):
            self.step += 1
            self._one_step(warm=self.step - first_of_attempt <= 3 and self._is_fresh())
            if self.step % CHECKPOINT_EVERY == 0:
                self.checkpoint()

    def run_seconds(self, seconds: float) -> None:
        """Run steps until at least `seconds` have passed."""
        end = self.now_ns + int(seconds * SECOND)
        while self.now_ns < end:
            self.run_steps(1)

    def _is_fresh(self) -> bool:
        number = self.attempt.attempt
        mine = [r for r in self.records[-3 * self.attempt.world_size :] if r.attempt == number]
        return len(mine) < 3 * self.attempt.world_size

    def _one_step(self, warm: bool) -> None:
        attempt, step, rng = self.attempt, self.step, self.rng
        sft = step <= SFT_STEPS
        rollout = not sft and step % 2 == 1
        body = 0.05 if sft else 0.165 if rollout else 0.075
        body *= float(np.exp(rng.normal(0, 0.03))) * (1.4 if warm else 1.0)
        body += self.drag
        if rng.random() < 0.015:
            body += float(rng.uniform(0.01, 0.04))
        own = rng.gamma(2.0, 0.0008, attempt.world_size)
        if self.delay is not None and not sft:
            own[self.delay[0]] += self.delay[1]
        last = float(own.max())
        total = body + last
        iteration = 0 if sft else (step - SFT_STEPS + 1) // 2
        reward = None if not rollout else min(0.9, 0.05 + step / 1600) + float(rng.normal(0, 0.02))
        for process in attempt.ranks:
            wait = last - float(own[process.rank]) + float(rng.gamma(2.0, 0.0002))
            skew = int(rng.integers(0, 200_000))
            duration = int(total * SECOND) + int(rng.integers(0, 150_000))
            start = self.now_ns + skew
            self.records.append(
                StepRecord(
                    run=RUN,
                    attempt=attempt.attempt,
                    step=step,
                    iteration=iteration,
                    rank=process.rank,
                    node=process.node,
                    world_size=attempt.world_size,
                    configuration=configuration(attempt.world_size),
                    stage="sft" if sft else "grpo",
                    start_ns=start,
                    start_mono_ns=start - MONO_OFFSET_NS,
                    duration_ns=duration,
                    phases_ns=_phases(duration, rollout, sft),
                    children_ns={
                        "ep_counts": int(wait * SECOND),
                        "ep_dispatch": duration // 40,
                        "ep_experts": duration // 10,
                        "ep_combine": duration // 40,
                    },
                    waits_ns={"ep": int(wait * SECOND), "dp": int(rng.integers(100_000, 900_000))},
                    tokens=512,
                    rows_to=[int(v) for v in rng.integers(200, 300, attempt.world_size)],
                    rows_from=[int(v) for v in rng.integers(200, 300, attempt.world_size)],
                    first_expert=process.rank * (8 // attempt.world_size),
                    expert_tokens=[int(v) for v in rng.integers(80, 180, 8 // attempt.world_size)],
                    policy_version=iteration,
                    loss=loss_of(step, attempt.world_size),
                    reward=reward,
                    peak_memory_bytes=410_000_000 + 1_000_000 * process.rank,
                    warmup=warm,
                )
            )
        self.now_ns += int(total * SECOND) + 400_000
        self._recent = [*self._recent[-99:], total]
        self.p99.append((self.now_ns / 1e9, float(np.quantile(self._recent, 0.99))))


def _phases(duration_ns: int, rollout: bool, sft: bool) -> dict[str, int]:
    shares = (
        {"data": 0.02, "forward_backward": 0.75, "grad_sync": 0.1, "optimizer": 0.08}
        if sft
        else {
            "rollout_generate": 0.5,
            "reward": 0.01,
            "logprob_old": 0.08,
            "logprob_ref": 0.08,
            "advantage": 0.005,
            "forward_backward": 0.22,
            "grad_sync": 0.05,
            "optimizer": 0.03,
        }
        if rollout
        else {"data": 0.01, "forward_backward": 0.72, "grad_sync": 0.14, "optimizer": 0.08}
    )
    phases = {name: int(duration_ns * share) for name, share in shares.items()}
    phases["unaccounted"] = duration_ns - sum(phases.values())
    return phases
