"""Saving and restoring a training job: verified, durable, and the same decision on every rank.

Contract: `save` and `load` are collective over all ranks of the job (which call them in the same
order), and raise on all ranks or on none. State is a flat dict of tensors by name. A tensor has
one name in the whole job: an expert's tensors are named by its global number and lie on the rank
that owns it; everything else is replicated and written once. So any number of ranks can load what
any other number saved.

After `save` returned, the step is on the disk, has been read back and survives a power cut. With
`wait=False` it returns once the state is copied to host memory, and the rest happens beside the
training: one such save at a time, the next call waits for it. A committed step is never written
again. Events on rank 0, in this order: `checkpoint_staged` (only where the trainer goes on
meanwhile), `checkpoint_written` (all files durable under a temporary name), `checkpoint_committed`,
`checkpoint_verified`, each with the seconds since the save began and the seconds of each phase so
far. Those of a save in the background come with the next `poll`, in the thread that trains, and so
does its failure.

`load` tries committed checkpoints from the newest to the oldest. Before any tensor is touched all
ranks verify their share of the files; on any damage rank 0 looks itself, quarantines the directory
and all go on to the one before. Nothing valid left in a run that ever committed is an error, so a
job never silently starts again from nothing.

Cost: for 4 MB on 4 ranks of two cores a save takes tens of milliseconds, most of it planning in
DCP and fsyncs. In the background it holds a second copy of the state in host memory.
"""

from __future__ import annotations

import errno
import threading
import time
import warnings
from collections import deque
from typing import Any, Literal, Protocol

from tailwatch.holding import Hold
from tailwatch.integrity import BLOCK_BYTES, Policy, storage_of
from tailwatch.records import EventKind
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint.errors import CheckpointError, SaveError
from tailwatch.trainer.checkpoint.examine import VIEW_SECONDS, State
from tailwatch.trainer.checkpoint.loading import Loader, Restored
from tailwatch.trainer.checkpoint.memory import MemoryTier
from tailwatch.trainer.checkpoint.ranks import Ranks
from tailwatch.trainer.checkpoint.saving import Saver, SaveRequest, Settings
from tailwatch.trainer.checkpoint.staging import Stage

# A rank 0 that was killed is gone by then, one on another host has lost its lock.
PREDECESSOR_SECONDS = 15.0

Progress = Literal["idle", "staged", "written", "committed", "verified", "failed"]
_PROGRESS: dict[EventKind, Progress] = {
    "checkpoint_written": "written",
    "checkpoint_committed": "committed",
    "checkpoint_verified": "verified",
}


class Emit(Protocol):
    """Called on rank 0 with the kind of event, the step it is about, and its detail."""

    def __call__(self, kind: EventKind, step: int, detail: dict[str, Any], /) -> None: ...


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        run: the run directory; all ranks must see the same `checkpoints/` in it.
        emit: takes events, on rank 0 only, in the thread that calls this store.
        policy: which checkpoints to leave on the disk; the newest verified one always stays.
        mesh: sizes of the dimensions of parallelism by name, for the manifest.
        memory: a tier in this machine's memory, in front of the disk.
        block_bytes: how much of a file one digest is for.
        view_seconds: how long to wait for a rank whose host shows it an older listing.

    `progress` says how far the save that is going on, or the last one, has come.
    """

    def __init__(
        self,
        run: RunDirectory,
        *,
        emit: Emit,
        policy: Policy | None = None,
        mesh: dict[str, int] | None = None,
        memory: MemoryTier | None = None,
        block_bytes: int = BLOCK_BYTES,
        view_seconds: float = VIEW_SECONDS,
        predecessor_seconds: float = PREDECESSOR_SECONDS,
    ) -> None:
        self._run = run
        self._emit = emit
        self._memory = memory
        self._predecessor_seconds = predecessor_seconds
        settings = Settings(
            policy=policy or Policy(),
            mesh=mesh or {},
            block_bytes=block_bytes,
            view_seconds=view_seconds,
        )
        self._saver = Saver(run, settings, memory, self._tell)
        self._loader = Loader(run, view_seconds, memory, self._tell)
        self._stage = Stage()
        self._ranks: Ranks | None = None
        self._hold: Hold | None = None
        self._thread: threading.Thread | None = None
        self._untold: deque[tuple[EventKind, int, dict[str, Any]]] = deque()
        self._failures: deque[SaveError] = deque()
        self.progress: Progress = "idle"

    def save(
        self,
        state: State,
        *,
        step: int,
        iteration: int,
        attempt: int,
        extra: dict[str, Any],
        wait: bool = True,
    ) -> None:
        """Write, commit and verify the checkpoint of `step`; a valid one is left as it is.

        `extra` must be JSON and is taken from rank 0. Without `wait` the work goes on in the
        background. Raises SaveError for this save; that of one before comes with the next `poll`.
        """
        self._join()
        started = time.monotonic()
        ranks = self._begin()
        request = SaveRequest(
            step=step, iteration=iteration, attempt=attempt, extra=extra, started=started
        )
        if wait:
            try:
                self._saver.save(ranks, state, request, 0.0)
            except BaseException:
                self.progress = "failed"
                raise
            return
        staged = self._stage.take(state)
        seconds = time.monotonic() - started
        self.progress = "staged"
        if ranks.rank == 0:
            size = sum(tensor.numel() * tensor.element_size() for tensor in staged.values())
            detail = {"bytes": size, "seconds": seconds, "phases": {"stage": seconds}}
            self._emit("checkpoint_staged", step, detail)
        self._thread = threading.Thread(
            target=self._work,
            args=(ranks, staged, request, seconds),
            name="checkpoint",
            daemon=True,
        )
        self._thread.start()

    def poll(self) -> None:
        """Tell what a save in the background has done; raise its SaveError once it has failed."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        self._tell_all()
        if self._thread is None and self._failures:
            raise self._failures.popleft()

    def wait(self) -> None:
        """Wait for a save in the background, then do as `poll`."""
        self._join()
        self.poll()

    def _join(self) -> None:
        # Not every rank need have polled: raising here would part them before a collective.
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._tell_all()

    def _tell_all(self) -> None:
        while self._untold:
            self._emit(*self._untold.popleft())

    def load(self, state: State, *, from_scratch: bool = False) -> Restored | None:
        """Restore the newest valid checkpoint into `state`, in place; None if there never was one.

        Raises NothingToRestore when the run has committed before and nothing valid is left, unless
        `from_scratch`; CheckpointError when the checkpoint does not fit `state`, or another job
        uses this run; SplitViewError when ranks do not see the same files. `state` is untouched
        then.
        """
        self._join()
        return self._loader.load(self._begin(), state, from_scratch=from_scratch)

    def close(self) -> None:
        """Wait for a save in the background, let go of the run and of the memory tier's room."""
        try:
            self.wait()
        finally:
            if self._memory is not None and (self._ranks is None or self._ranks.rank == 0):
                self._memory.remove()
            if self._hold is not None:
                self._hold.release()

    def _begin(self) -> Ranks:
        """Collective, at the first call: make sure that this job may write where it is to write."""
        if self._ranks is None:
            ranks = Ranks()
            ranks.decide(self._claim)
            self._ranks = ranks
        return self._ranks

    def _claim(self) -> None:
        storage = storage_of(self._run.checkpoints)
        if storage.support == "refused":
            raise CheckpointError(f"{self._run.checkpoints} on {storage}", reason="storage")
        if storage.support == "warned":
            warnings.warn(f"{self._run.checkpoints} on {storage}", RuntimeWarning, stacklevel=2)
        try:
            self._hold = Hold.take(
                self._run.holder, "run", self._run.name, patience=self._predecessor_seconds
            )
        except OSError as error:
            # Where nobody can write there is nothing to keep others from; a load may go on.
            if error.errno != errno.EROFS:
                raise

    def _work(self, ranks: Ranks, state: State, request: SaveRequest, seconds: float) -> None:
        try:
            self._saver.save(ranks, state, request, seconds)
            self.progress = "verified"
        except BaseException as error:
            if not isinstance(error, SaveError):
                text = f"step {request.step}: {type(error).__name__}: {error}"
                error = SaveError(text)
            self._failures.append(error)
            self.progress = "failed"

    def _tell(self, kind: EventKind, step: int, detail: dict[str, Any]) -> None:
        self.progress = _PROGRESS.get(kind, self.progress)
        if threading.current_thread() is self._thread:
            self._untold.append((kind, step, detail))
        else:
            self._emit(kind, step, detail)
