"""The recorder of one rank.

Contract: `step` is open from `begin_step` to `end_step`; inside it phases are exclusive and
children lie inside a phase. What no phase covers is `unaccounted`. The recorder never blocks and
never raises because of a reader.

Cost: two marks (about 0.5 us each) a phase or child, and one encoded record a step.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator

from tailwatch.records import Event, EventKind, Stage, StepRecord, encode
from tailwatch.ring import MarkCode, RingWriter
from tailwatch.ring.layout import END

_CODES = {code.name.lower(): code for code in MarkCode}


class StepRecorder:
    """Collects one step at a time and appends its record to the ring.

    Args:
        configuration: what makes steps comparable (see `StepRecord`).
        first_expert: global index of the first expert this rank owns.
    """

    def __init__(
        self,
        ring: RingWriter,
        *,
        run: str,
        attempt: int,
        rank: int,
        world_size: int,
        node: str,
        configuration: str,
        first_expert: int,
    ) -> None:
        self._ring = ring
        self._run = run
        self._attempt = attempt
        self._rank = rank
        self._world_size = world_size
        self._node = node
        self._configuration = configuration
        self._first_expert = first_expert
        self._phases: dict[str, int] = {}
        self._children: dict[str, int] = {}
        self._waits: dict[str, int] = {}
        self._step = 0
        self._iteration = 0
        self._stage: Stage = "sft"
        self._start_ns = self._start_mono_ns = 0

    def begin_step(self, step: int, iteration: int, stage: Stage) -> None:
        """Open a step."""
        self._step, self._iteration, self._stage = step, iteration, stage
        self._phases, self._children, self._waits = {}, {}, {}
        self._ring.begin_step(step)
        self._start_ns = time.time_ns()
        self._start_mono_ns = self._ring.mark(MarkCode.STEP)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Account the time inside to an exclusive phase; a phase may be entered again."""
        code = _CODES[name]
        started = self._ring.mark(code)
        try:
            yield
        finally:
            ended = self._ring.mark(code | END)
            self._phases[name] = self._phases.get(name, 0) + ended - started

    def begin(self, code: MarkCode, argument: int = 0) -> int:
        """Leave a mark and return its monotonic time in ns."""
        return self._ring.mark(code, argument)

    def end_child(self, name: str, code: MarkCode, started_ns: int, argument: int = 0) -> int:
        """Close a child of the current phase and return its length in ns."""
        length = self._ring.mark(code | END, argument) - started_ns
        self._children[name] = self._children.get(name, 0) + length
        return length

    def add_wait(self, group: str, waited_ns: int) -> None:
        """Add time this rank spent waiting for its peers in a group."""
        self._waits[group] = self._waits.get(group, 0) + waited_ns

    def end_step(
        self,
        *,
        tokens: int,
        rows_to: list[int],
        rows_from: list[int],
        expert_tokens: list[int],
        policy_version: int,
        staleness: int,
        loss: float,
        reward: float | None,
        warmup: bool,
    ) -> StepRecord:
        """Close the step, append its record and return it."""
        duration = self._ring.mark(MarkCode.STEP | END) - self._start_mono_ns
        phases = self._phases
        phases["unaccounted"] = max(duration - sum(phases.values()), 0)
        record = StepRecord(
            run=self._run,
            attempt=self._attempt,
            step=self._step,
            iteration=self._iteration,
            rank=self._rank,
            node=self._node,
            world_size=self._world_size,
            configuration=self._configuration,
            stage=self._stage,
            start_ns=self._start_ns,
            start_mono_ns=self._start_mono_ns,
            duration_ns=duration,
            phases_ns=phases,
            children_ns=self._children,
            waits_ns=self._waits,
            tokens=tokens,
            rows_to=rows_to,
            rows_from=rows_from,
            first_expert=self._first_expert,
            expert_tokens=expert_tokens,
            policy_version=policy_version,
            staleness=staleness,
            loss=loss,
            reward=reward,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            warmup=warmup,
        )
        self._ring.append(encode(record))
        return record

    def event(
        self, kind: EventKind, *, step: int | None = None, detail: dict[str, object] | None = None
    ) -> Event:
        """Append an event of this rank to the ring and return it."""
        event = Event(
            run=self._run,
            attempt=self._attempt,
            time_ns=time.time_ns(),
            kind=kind,
            source=f"rank{self._rank}",
            step=step,
            rank=self._rank,
            node=self._node,
            detail=detail or {},
        )
        self._ring.append(encode(event))
        return event

    def close(self) -> None:
        """Let go of the ring; its file stays for the node agent."""
        self._ring.close()
