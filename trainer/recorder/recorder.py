"""The recorder of one rank.

Contract: a step is open from `begin_step` to `end_step`; inside it phases are exclusive and
children lie inside a phase. What no phase covers is `unaccounted`. The recorder never blocks and
never raises because of a reader.

Cost: two marks (about 0.5 us each) a phase or child, and one encoded record a step. After a
training step the caches are cold, and what is touched costs more than what is computed: phases are
made once, the record is one object that is filled anew, and peak memory is read now and then.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from types import TracebackType

import msgspec

from tailwatch.records import PHASES, Event, EventKind, Stage, StepRecord, encode
from tailwatch.ring import MarkCode, RingWriter
from tailwatch.ring.layout import END

# Peak memory only grows: reading it in every step would cost more than it says.
_MEMORY_EVERY = 64
_STEP = int(MarkCode.STEP)
_STEP_END = _STEP | END


class Phase:
    """An exclusive part of a step, as a context; may be entered again in the same step."""

    __slots__ = ("_code", "_end", "_mark", "_started", "length_ns")

    def __init__(self, ring: RingWriter, code: MarkCode) -> None:
        self._mark = ring.mark
        self._code = int(code)
        self._end = int(code) | END
        self._started = 0
        self.length_ns = 0

    def __enter__(self) -> None:
        self._started = self._mark(self._code)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.length_ns += self._mark(self._end) - self._started


class Wait:
    """A collective that says how long it stood: mostly until the last peer had come."""

    __slots__ = ("_group", "_recorder", "_started")

    def __init__(self, recorder: StepRecorder, group: str) -> None:
        self._recorder = recorder
        self._group = group
        self._started = 0

    def __enter__(self) -> None:
        self._started = time.monotonic_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recorder.add_wait(self._group, time.monotonic_ns() - self._started)


class StepRecorder:
    """Collects one step at a time and appends its record to the ring.

    Args:
        configuration: what makes steps comparable (see `StepRecord`).
        first_expert: global index of the first expert this rank owns.

    `after_first_step`, when set, is called with the number of the first step once it is recorded.
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
        self.after_first_step: Callable[[int], None] | None = None
        self._phases = {
            name: Phase(ring, MarkCode[name.upper()]) for name in PHASES if name != "unaccounted"
        }
        self._record = StepRecord(
            run=run,
            attempt=attempt,
            step=0,
            iteration=0,
            rank=rank,
            node=node,
            world_size=world_size,
            configuration=configuration,
            stage="sft",
            start_ns=0,
            start_mono_ns=0,
            duration_ns=0,
            phases_ns={},
            first_expert=first_expert,
        )
        self._steps = 0

    def begin_step(self, step: int, iteration: int, stage: Stage) -> None:
        """Open a step."""
        record = self._record
        record.step, record.iteration, record.stage = step, iteration, stage
        record.children_ns, record.waits_ns = {}, {}
        self._ring.begin_step(step)
        record.start_ns = time.time_ns()
        record.start_mono_ns = self._ring.mark(_STEP)

    def phase(self, name: str) -> Phase:
        """Return the context that accounts the time inside it to an exclusive phase."""
        return self._phases[name]

    def begin(self, code: MarkCode, argument: int = 0) -> int:
        """Leave a mark and return its monotonic time in ns."""
        return self._ring.mark(code, argument)

    def end_child(self, name: str, code: MarkCode, started_ns: int, argument: int = 0) -> int:
        """Close a child of the current phase and return its length in ns."""
        length = self._ring.mark(code | END, argument) - started_ns
        children = self._record.children_ns
        children[name] = children.get(name, 0) + length
        return length

    def wait(self, group: str) -> Wait:
        """Return the context that counts the time inside it as waiting for peers of a group."""
        return Wait(self, group)

    def add_wait(self, group: str, waited_ns: int) -> None:
        """Add time this rank spent waiting for its peers in a group."""
        waits = self._record.waits_ns
        waits[group] = waits.get(group, 0) + waited_ns

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
        eval_reward: float | None = None,
        squared_tokens: int = 0,
    ) -> None:
        """Close the step and append its record."""
        record = self._record
        duration = self._ring.mark(_STEP_END) - record.start_mono_ns
        record.duration_ns = duration
        phases: dict[str, int] = {}
        rest = duration
        for name, phase in self._phases.items():
            length = phase.length_ns
            if length:
                phases[name] = length
                rest -= length
                phase.length_ns = 0
        phases["unaccounted"] = max(rest, 0)
        record.phases_ns = phases
        record.tokens, record.squared_tokens = tokens, squared_tokens
        record.rows_to, record.rows_from = rows_to, rows_from
        record.expert_tokens = expert_tokens
        record.policy_version, record.staleness = policy_version, staleness
        record.loss, record.reward, record.eval_reward = loss, reward, eval_reward
        record.warmup = warmup
        if self._steps % _MEMORY_EVERY == 0:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            record.peak_memory_bytes = usage.ru_maxrss * 1024
        self._steps += 1
        try:
            data = encode(record)
        except ValueError:
            # Very wide expert parallelism: who sent how much to whom no longer fits a slot.
            record.rows_to, record.rows_from = [], []
            data = encode(record)
        self._ring.append(data)
        if self._steps == 1 and self.after_first_step is not None:
            self.after_first_step(record.step)

    def event(
        self, kind: EventKind, *, step: int | None = None, detail: dict[str, object] | None = None
    ) -> Event:
        """Append an event of this rank to the ring and return it."""
        record = self._record
        event = Event(
            run=record.run,
            attempt=record.attempt,
            time_ns=time.time_ns(),
            kind=kind,
            source=f"rank{record.rank}",
            step=step,
            rank=record.rank,
            node=record.node,
            detail=detail or {},
        )
        try:
            data = encode(event)
        except ValueError:
            data = encode(msgspec.structs.replace(event, detail={"cut": str(detail)[:1000]}))
        self._ring.append(data)
        return event

    def close(self) -> None:
        """Let go of the ring; its file stays for the node agent."""
        self._ring.close()
