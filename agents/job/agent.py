"""The work of the job agent: frames in, state changed, state saved.

Contract: a record counts once, whether it is read once or again after a restart: the state is
saved together with the place in every node's log from which the unfinished steps can be read again.
The node of a record is the one whose log it came from, not the one it names.

Cost: about 10 us a record, decoding included; one durable save every `SAVE_SECONDS`.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from tailwatch.agents.job.assemble import Assembler
from tailwatch.agents.job.pull import Frames
from tailwatch.agents.job.state import JobState, NodeCursor, load_state, save_state
from tailwatch.agents.service import log
from tailwatch.records import StepRecord, decode
from tailwatch.steplog import payloads

SAVE_SECONDS = 5.0


class JobAgent:
    """Keeps the state of one run; `state` is what the metrics are made from."""

    def __init__(self, path: Path, run: str, workload: str, nodes: list[str]) -> None:
        self._path = path
        self.state: JobState = load_state(path, run, workload)
        self._assembler = Assembler(self.state.last_done)
        self._saved_at = time.monotonic()
        self._problem = ""
        for node in nodes:
            self.state.cursors.setdefault(node, NodeCursor())
        self._cursors = {node: self.state.cursors[node].resume for node in nodes}

    def cursor(self, node: str) -> int:
        """Return where to go on reading a node's log."""
        return self._cursors[node]

    def take(self, frames: Frames) -> None:
        """Take the frames of one node."""
        node = frames.node
        place = self.state.cursors[node]
        if frames.cursor < self._cursors[node]:
            # The log was begun anew: what was seen of the old one says nothing about it.
            place.seen = 0
        here = frames.cursor
        found_baseline = False
        for offset, payload in payloads(frames.data):
            found_baseline |= self._take_record(node, here, payload, place)
            here = frames.cursor + offset
            place.seen = max(place.seen, here)
        self._cursors[node] = here
        if found_baseline:
            self.save()

    def _take_record(self, node: str, at: int, payload: memoryview, place: NodeCursor) -> bool:
        try:
            record = decode(payload)
        except msgspec.MsgspecError as error:
            log(f"node {node}: record at {at} is unreadable: {error}")
            return False
        if record.run != self.state.run:
            return False
        if not isinstance(record, StepRecord):
            if at >= place.seen:
                self.state.take_event(record)
            return False
        self.state.see_rank(node, record)
        done = self._assembler.add(node, at, record)
        return done is not None and self.state.take_step(done)

    def tick(self) -> None:
        """Do what time asks for: forget what will never be whole, save what is due."""
        self._assembler.drop_superseded(self.state.attempt or 0)
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Save the state; a disk that does not take it costs only the way back."""
        oldest = self._assembler.oldest_held()
        for node, cursor in self._cursors.items():
            self.state.cursors[node].resume = min(cursor, oldest.get(node, cursor))
        self.state.last_done = self._assembler.last_done
        problem = ""
        try:
            save_state(self._path, self.state)
        except OSError as error:
            problem = f"{self._path}: cannot be saved: {error.strerror}"
        if problem and problem != self._problem:
            log(problem)
        self._problem = problem
        self._saved_at = time.monotonic()
