"""A game day small enough for a test: real parts, a workload of a fraction of the demo's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tailwatch.chaos.plan import DEMO_PLAN

# About a quarter of the demo's time a step; everything else, four ranks and all, is the same.
SMALL = {
    "layers": 1,
    "d_model": 32,
    "d_expert": 32,
    "heads": 2,
    "digits_max": 3,
    "prompts": 8,
    "group": 4,
    "sft_steps": 6,
    "sft_sequences": 64,
    "checkpoint_every": 40,
    "eval_prompts": 64,
}


def small_plan(path: Path, **criteria: Any) -> Path:
    """Write the demo's plan, small and with less waiting; `criteria` replace the plan's."""
    plan = json.loads(DEMO_PLAN.read_text())
    plan["workload"] = SMALL
    plan["criteria"].update(criteria)
    for experiment in plan["experiments"]:
        experiment["hold_seconds"] = 5
        for alert in experiment["expected"]:
            alert["deadline_seconds"] = 20
    path.write_text(json.dumps(plan))
    return path


class GameDay:
    """A game day that runs as a process of its own, as a person would start it."""

    def __init__(self, plan: Path, out: Path, *arguments: str, stdout: Path | None = None) -> None:
        self.out = out
        self.log = stdout or out.parent / f"{out.name}.log"
        argv = [sys.executable, "-m", "tailwatch", "gameday", "run", str(plan), "--out", str(out)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*argv, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def wait(self, timeout: float) -> int:
        """Return its exit status; the output is in the message when it takes too long."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"still running after {timeout} s:\n{self.output()}") from None

    def wait_for(self, pattern: str, timeout: float) -> None:
        """Wait until a line of the output or of the timeline matches."""
        deadline = time.monotonic() + timeout
        while not re.search(pattern, self.output() + self.timeline()):
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, f"no {pattern!r}:\n{self.output()}"
            time.sleep(0.05)

    def output(self) -> str:
        """What it printed so far."""
        return self.log.read_text()

    def timeline(self) -> str:
        """What its runner wrote down so far."""
        path = self.out / "evidence" / "timeline.jsonl"
        return path.read_text() if path.exists() else ""

    def report(self) -> dict[str, Any]:
        """Its report.json."""
        report: dict[str, Any] = json.loads((self.out / "report" / "report.json").read_text())
        return report

    def driver(self) -> dict[str, Any]:
        """Its driver.json."""
        driver: dict[str, Any] = json.loads((self.out / "driver.json").read_text())
        return driver
