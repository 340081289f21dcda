"""The runner's own view of the job: step records as they come, straight from the step logs.

Contract: independent of the job agent and of Prometheus, so that what verifies a fault is not what
is being tested. Reads forward only; a torn frame at the end is read again at the next poll.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailwatch.jobsteps import JobStep, job_steps
from tailwatch.records import StepRecord, decode
from tailwatch.steplog import payloads


class StepFeed:
    """Whole job steps, in order of arrival.

    Attributes:
        steps: all job steps so far.
    """

    def __init__(self, steplogs: list[Path]) -> None:
        self._offsets = dict.fromkeys(steplogs, 0)
        self._waiting: dict[tuple[int, int], list[StepRecord]] = {}
        self.steps: list[JobStep] = []

    def poll(self) -> list[JobStep]:
        """Read what is new and return the job steps that became whole."""
        fresh: list[JobStep] = []
        for path in self._offsets:
            for record in self._read(path):
                key = (record.attempt, record.step)
                ranks = self._waiting.setdefault(key, [])
                ranks.append(record)
                if len(ranks) == record.world_size:
                    fresh += job_steps(self._waiting.pop(key))
        self.steps += fresh
        return fresh

    def _read(self, path: Path) -> list[StepRecord]:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                data = file.read()
        except FileNotFoundError:
            return []
        records: list[StepRecord] = []
        consumed = 0
        for end, payload in payloads(data):
            consumed = end
            try:
                record = decode(payload)
            except msgspec.MsgspecError:
                continue
            if isinstance(record, StepRecord):
                records.append(record)
        self._offsets[path] += consumed
        return records

    def since(self, time_ns: int) -> list[JobStep]:
        """Return the whole job steps that began at or after a wall time."""
        found: list[JobStep] = []
        for step in reversed(self.steps):
            if step.start_ns < time_ns - 60_000_000_000:
                break
            if step.start_ns >= time_ns:
                found.append(step)
        return found[::-1]
