"""Saving and restoring a training job: verified, durable, and the same decision on every rank.

Contract: `save` and `load` are collective over the default process group (all ranks call them in
the same order), and raise on all ranks or on none. State is a flat dict of tensors by name. A
tensor has one name in the whole job: an expert's tensors are named by its global number and lie
on the rank that owns it; everything else is replicated and written once. So any number of ranks
can load what any other number saved.

After `save` returned, the step is on the disk, has been read back and survives a power cut. A
committed step is never written again. Events on rank 0, in this order: `checkpoint_written`
(all files durable under a temporary name), `checkpoint_committed`, `checkpoint_verified`, each
with the seconds since the save began. (`checkpoint_staged` belongs to saves that let the trainer
go on meanwhile.)

`load` tries committed checkpoints from the newest to the oldest. Before any tensor is touched all
ranks verify their share of the files; on any damage rank 0 looks itself, quarantines the directory
and all go on to the one before. Nothing valid left in a run that ever committed is an error, so a
job never silently starts again from nothing.

Cost: for 4 MB on 4 ranks of two cores a save takes tens of milliseconds, most of it planning in
DCP and fsyncs.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tailwatch.integrity import (
    Candidate,
    FileEntry,
    Manifest,
    candidates,
    commit,
    parse_name,
    quarantine,
    remove_leftovers,
    retain,
    step_name,
    temporary_name,
    verify,
)
from tailwatch.records import EventKind
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint.errors import (
    CheckpointError,
    NothingToRestore,
    SaveError,
)
from tailwatch.trainer.checkpoint.examine import Refusal, State, agree, look
from tailwatch.trainer.checkpoint.ranks import Ranks
from tailwatch.trainer.checkpoint.reader import CheckedReader
from tailwatch.trainer.checkpoint.writer import OwnershipPlanner, SealingWriter


class Emit(Protocol):
    """Called on rank 0 with the kind of event, the step it is about, and its detail."""

    def __call__(self, kind: EventKind, step: int, detail: dict[str, Any], /) -> None: ...


class Restored(msgspec.Struct, kw_only=True):
    """What was loaded: `extra` is what `save` was given, `refused` newest first."""

    step: int
    iteration: int
    attempt: int
    checkpoint: str
    extra: dict[str, Any]
    refused: list[Refusal]


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        run: the run directory; all ranks must see the same `checkpoints/` in it.
        keep: how many checkpoints to leave on the disk, at least 1; the newest verified one stays.
        emit: takes events, on rank 0 only.
    """

    def __init__(self, run: RunDirectory, *, keep: int = 4, emit: Emit) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1")
        self._run = run
        self._keep = keep
        self._emit = emit

    def save(
        self, state: State, *, step: int, iteration: int, attempt: int, extra: dict[str, Any]
    ) -> None:
        """Write, commit and verify the checkpoint of `step`; a valid one is left as it is.

        `extra` must be JSON and is taken from rank 0. Raises SaveError or RankError.
        """
        ranks = Ranks()
        started = time.monotonic()
        final = self._run.checkpoints / step_name(step)
        temporary = self._run.checkpoints / temporary_name(step, attempt)
        if not ranks.decide(lambda: self._make_room(final, attempt)):
            return

        def seal(save_id: str, files: dict[str, FileEntry], tensors: dict[str, list[int]]) -> None:
            manifest = Manifest(
                run=self._run.name,
                attempt=attempt,
                step=step,
                iteration=iteration,
                world_size=ranks.size,
                save_id=save_id,
                files=files,
                tensors=tensors,
                extra=extra,
            )
            detail = {"checkpoint": final.name, "bytes": manifest.total_bytes}
            self._emit("checkpoint_written", step, detail | _seconds(started))
            commit(temporary, manifest)
            self._emit("checkpoint_committed", step, detail | _seconds(started))

        def conclude() -> None:
            detail = {"checkpoint": final.name, "bytes": sum(s.bytes_read for s in sights)}
            self._emit("checkpoint_verified", step, detail | _seconds(started))
            try:
                retain(self._run.checkpoints, self._keep, verified_step=step)
            except OSError as error:
                # What could not be deleted costs space, not the checkpoint that was just made.
                self._emit("failure", step, {"retention": str(error)})

        try:
            with _quiet_when_alone(ranks):
                dcp_save(
                    dict(state),
                    storage_writer=SealingWriter(temporary, seal),
                    planner=OwnershipPlanner(flatten_state_dict=False),
                    no_dist=ranks.alone,
                )
        except CheckpointException as error:
            if ranks.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            raise SaveError(
                f"step {step}: {_first_failure(error)} ({_free(final.parent)})"
            ) from error
        sights, _ = look(ranks, self._run.name, final, {})
        refusal = agree(
            ranks,
            self._run.name,
            Candidate(name=final.name, path=final, step=step, state="committed"),
            sights,
        )
        if refusal is not None:
            ranks.decide(lambda: self._emit_refused([refusal], None))
            raise SaveError(
                f"step {step} does not read back as it was written: {refusal.reason};"
                f" kept as {refusal.quarantined_as}"
            )
        ranks.decide(conclude)

    def load(self, state: State, *, from_scratch: bool = False) -> Restored | None:
        """Restore the newest valid checkpoint into `state`, in place; None if there never was one.

        Raises NothingToRestore when the run has committed before and nothing valid is left, unless
        `from_scratch`; CheckpointError when the checkpoint does not fit `state`; SplitViewError
        when ranks do not see the same files. `state` is untouched then.
        """
        ranks = Ranks()
        started = time.monotonic()
        names, ever = ranks.decide(self._list)
        refused: list[Refusal] = []
        for candidate in filter(None, (parse_name(self._run.checkpoints / n) for n in names)):
            sights, manifest = look(ranks, self._run.name, candidate.path, state)
            refusal = agree(ranks, self._run.name, candidate, sights)
            if refusal is not None:
                refused.append(refusal)
                continue
            misfits = sorted({text for sight in sights for text in sight.misfits})
            if misfits:
                raise CheckpointError(
                    f"{candidate.name} does not fit the model in {len(misfits)} places,"
                    f" first: {misfits[0]}"
                )
            assert manifest is not None
            return self._restore(ranks, candidate, manifest, state, refused, started)
        ranks.decide(lambda: self._emit_refused(refused, 0 if from_scratch else None))
        if ever and not from_scratch:
            raise NothingToRestore(
                f"{self._run.checkpoints}: this run has committed checkpoints, and none of them"
                f" is valid any more ({len(refused)} refused now); it starts again from nothing"
                " only when told to"
            )
        return None

    def _make_room(self, final: Path, attempt: int) -> bool:
        """Clear the way for a step, on rank 0; return whether it is to be written at all."""
        remove_leftovers(self._run.checkpoints, attempt)
        if not final.exists():
            return True
        finding = verify(final, run=self._run.name)
        if finding.problems:
            quarantine(final, finding.problems[0].fault)
        return bool(finding.problems)

    def _list(self) -> tuple[list[str], bool]:
        """Return the names of committed checkpoints, and whether there ever was one, on rank 0."""
        every = candidates(self._run.checkpoints)
        ever = any(c.state != "temporary" for c in every) or self._run.has_committed()
        return [c.name for c in every if c.state == "committed"], ever

    def _restore(
        self,
        ranks: Ranks,
        candidate: Candidate,
        manifest: Manifest,
        state: State,
        refused: list[Refusal],
        started: float,
    ) -> Restored:
        try:
            with _quiet_when_alone(ranks):
                dcp_load(
                    state,
                    storage_reader=CheckedReader(candidate.path, manifest),
                    planner=DefaultLoadPlanner(flatten_state_dict=False),
                    no_dist=ranks.alone,
                )
        except CheckpointException as error:
            raise CheckpointError(f"{candidate.path}: {_first_failure(error)}") from error

        def tell() -> None:
            self._emit_refused(refused, manifest.step)
            detail = {"step": manifest.step, "checkpoint": candidate.name, "verified": True}
            self._emit("restore", manifest.step, detail | _seconds(started))

        ranks.decide(tell)
        return Restored(
            step=manifest.step,
            iteration=manifest.iteration,
            attempt=manifest.attempt,
            checkpoint=candidate.name,
            extra=manifest.extra,
            refused=refused,
        )

    def _emit_refused(self, refused: list[Refusal], restored_step: int | None) -> None:
        for refusal in refused:
            lost = None if restored_step is None else refusal.step - restored_step
            detail = msgspec.structs.asdict(refusal) | {"steps_lost": lost}
            self._emit("checkpoint_refused", refusal.step, detail)


def _first_failure(error: CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    return f"rank {rank}: {type(cause).__name__}: {cause}"


def _free(path: Path) -> str:
    stat = os.statvfs(path)
    return f"{stat.f_bavail * stat.f_frsize / 1e6:.0f} MB and {stat.f_favail} inodes free"


def _seconds(started: float) -> dict[str, float]:
    return {"seconds": time.monotonic() - started}


@contextmanager
def _quiet_when_alone(ranks: Ranks) -> Iterator[None]:
    """Silence DCP's warning that there is no process group, where there is meant to be none."""
    with warnings.catch_warnings():
        if ranks.alone:
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
