"""What the instrumentation of one step costs a training process.

    python bench/instrumentation.py [--pairs 60] [--block 10] [--json]

One process trains a small network, with a real node agent on the other end of the ring. Blocks of
steps with and without instrumentation alternate, in a random order within each pair, so that what
the machine does in the meantime hits both. Two answers:

- cost: the time of the 20 marks, the record, its append and the doorbell of one step, in
  microseconds: done again and again (what the calls compute; bar: at most 50 us at the median), and
  done once right behind a training step (what they cost when that step has emptied the caches; no
  bar of its own, because where the marks belong it is part of the ratio).
- ratio: time of a step with its marks where they belong over that of a step without any, with a
  95 % interval from a bootstrap over pairs of blocks. Bar: its upper end at most 1.03.

Ends with 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tailwatch.ring import RingWriter
from tailwatch.trainer.recorder import StepRecorder

COST_BAR_US = 50.0
RATIO_BAR = 1.03
RESAMPLES = 4000
AGAIN = 20
# With the marks of the step itself that is 20 a step.
PHASES = (
    "data", "rollout_generate", "reward", "logprob_old", "logprob_ref", "advantage",
    "forward_backward", "grad_sync", "optimizer",
)  # fmt: skip


class Step:
    """A training step in nine pieces, about `milliseconds` long in all."""

    def __init__(self, milliseconds: float) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        layers = [torch.nn.Linear(256, 256) for _ in range(7)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.data = torch.randn(64, 256)
        self._warm_up()
        took = min(self._timed() for _ in range(5))
        rows = max(int(64 * milliseconds / 1e3 / took), 1)
        self.data = torch.randn(rows, 256)
        self._warm_up()

    def _warm_up(self) -> None:
        for _ in range(5):
            self._timed()

    def _timed(self) -> float:
        started = time.perf_counter()
        hidden = self.data
        for piece in range(len(PHASES)):
            hidden = self.piece(piece, hidden)
        return time.perf_counter() - started

    def piece(self, number: int, hidden: torch.Tensor) -> torch.Tensor:
        """Do one of the pieces: a layer forward, the backward pass, or the update."""
        if number < 7:
            out: torch.Tensor = torch.tanh(self.model[number](hidden))
            return out
        if number == 7:
            hidden.square().mean().backward()
        else:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return hidden


def plain(step: Step) -> float:
    """Return the seconds of one step without instrumentation."""
    started = time.perf_counter()
    hidden = step.data
    for piece in range(len(PHASES)):
        hidden = step.piece(piece, hidden)
    return time.perf_counter() - started


def instrumented(step: Step, recorder: StepRecorder, number: int) -> float:
    """Return the seconds of one step with its instrumentation where it belongs."""
    started = time.perf_counter()
    recorder.begin_step(number, number // 2, "grpo")
    hidden = step.data
    for piece, name in enumerate(PHASES):
        with recorder.phase(name):
            hidden = step.piece(piece, hidden)
    end_step(recorder, number)
    return time.perf_counter() - started


def instrumentation_alone(recorder: StepRecorder, number: int) -> float:
    """Return the seconds of the instrumentation of one step with nothing in it."""
    started = time.perf_counter()
    recorder.begin_step(number, number // 2, "grpo")
    for name in PHASES:
        with recorder.phase(name):
            pass
    end_step(recorder, number)
    return time.perf_counter() - started


def end_step(recorder: StepRecorder, number: int) -> None:
    """Write the record and ring."""
    recorder.add_wait("ep", 1_000_000)
    recorder.end_step(
        tokens=256,
        rows_to=[64] * 4,
        rows_from=[64] * 4,
        expert_tokens=[64] * 8,
        policy_version=number,
        staleness=0,
        loss=0.5,
        reward=0.25,
        warmup=False,
    )


def start_agent(root: Path) -> subprocess.Popen[bytes]:
    """Start a node agent on `root` and return it when it serves."""
    ready = root / "ready"
    agent = subprocess.Popen(
        [
            *(sys.executable, "-m", "tailwatch.agents.node.main", "--node", "bench"),
            *("--rings", str(root / "rings"), "--log", str(root / "log")),
            *("--doorbell", str(root / "bell"), "--ready-file", str(ready)),
            *("--listen", "127.0.0.1:0", "--collector.disable-defaults", "--collector.steps"),
        ],
        stderr=subprocess.DEVNULL,
    )
    while not ready.exists():
        if agent.poll() is not None:
            raise SystemExit("the node agent did not start")
        time.sleep(0.05)
    return agent


def measure(recorder: StepRecorder, step: Step, pairs: int, block: int) -> dict[str, Any]:
    """Run the blocks and return the figures."""
    order = random.Random(1)
    warm: list[float] = []
    costs: list[float] = []
    seconds = np.zeros((pairs, 2))
    number = 0
    for pair in range(pairs):
        for with_marks in order.sample((True, False), 2):
            for _ in range(block):
                number += 1
                took = instrumented(step, recorder, number) if with_marks else plain(step)
                seconds[pair, int(with_marks)] += took
                if not with_marks:
                    costs.append(instrumentation_alone(recorder, number) * 1e6)
        again = [instrumentation_alone(recorder, number) * 1e6 for _ in range(2 * AGAIN)]
        warm += again[AGAIN:]
    rng = np.random.default_rng(1)
    drawn = seconds[rng.integers(0, pairs, (RESAMPLES, pairs))].sum(axis=1)
    lower, upper = np.quantile(drawn[:, 1] / drawn[:, 0], (0.025, 0.975))
    without, with_marks_total = seconds.sum(axis=0)
    return {
        "steps": number,
        "marks_per_step": 2 * len(PHASES) + 2,
        "cost_us": _cost(warm) | {"bar": COST_BAR_US},
        "cost_behind_a_step_us": _cost(costs),
        "step_ms": {
            "without": float(without / (pairs * block) * 1e3),
            "with": float(with_marks_total / (pairs * block) * 1e3),
        },
        "ratio": {
            "estimate": float(with_marks_total / without),
            "lower": float(lower),
            "upper": float(upper),
            "pairs": pairs,
            "bar": RATIO_BAR,
        },
        "met": bool(np.median(warm) <= COST_BAR_US and upper <= RATIO_BAR),
    }


def _cost(samples: list[float]) -> dict[str, Any]:
    median, p99 = np.quantile(samples, (0.5, 0.99))
    return {"median": float(median), "p99": float(p99), "n": len(samples)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks")
    parser.add_argument("--block", type=int, default=10, help="steps in a block")
    parser.add_argument("--step-ms", type=float, default=30.0, help="length of a step")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    flags = parser.parse_args()
    shared = Path("/dev/shm")
    base = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tailwatch-bench-", dir=base) as directory:
        root = Path(directory)
        agent = start_agent(root)
        try:
            ring = RingWriter(
                root / "rings", run="bench", attempt=1, rank=0, world_size=1, node="bench",
                doorbell=root / "bell",
            )  # fmt: skip
            recorder = StepRecorder(
                ring, run="bench", attempt=1, rank=0, world_size=1, node="bench",
                configuration="bench", first_expert=0,
            )  # fmt: skip
            found = measure(recorder, Step(flags.step_ms), flags.pairs, flags.block)
        finally:
            agent.terminate()
            agent.wait()
    if flags.json:
        print(json.dumps(found))
        return 0 if found["met"] else 1
    cost, ratio, length = found["cost_us"], found["ratio"], found["step_ms"]
    print(f"cost of a step's instrumentation ({found['marks_per_step']} marks, record, doorbell)")
    print(f"  median  {cost['median']:8.1f} us   (bar {COST_BAR_US:g})")
    print(f"  p99     {cost['p99']:8.1f} us   n = {cost['n']}")
    behind = found["cost_behind_a_step_us"]
    print("  right behind a training step, caches emptied")
    print(f"  median  {behind['median']:8.1f} us")
    print(f"  p99     {behind['p99']:8.1f} us   n = {behind['n']}")
    print("step time")
    print(f"  without {length['without']:8.2f} ms")
    print(f"  with    {length['with']:8.2f} ms")
    print(
        f"  ratio   {ratio['estimate']:8.4f}      95 % interval {ratio['lower']:.4f} to "
        f"{ratio['upper']:.4f}, {ratio['pairs']} pairs of blocks   (bar {RATIO_BAR:g})"
    )
    print("both bars met" if found["met"] else "a bar is MISSED")
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
