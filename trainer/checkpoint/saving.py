"""One save: written, committed, read back, older ones retired; the same outcome on every rank.

Contract: collective over `Ranks`. A step ends up committed and verified, or `SaveError` is raised
on all ranks and the checkpoints before it are as they were. Order on the disk: every file written
and fsynced by its rank, results counted against the plan, manifest written and fsynced, directory
fsynced, rename (the commit), parent fsynced, remembered in the run. An fsync is never tried again:
after an error the whole temporary directory is given up.

Cost: see `store`; three small collectives beside those of DCP.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor

from tailwatch.integrity import (
    BLOCK_BYTES,
    FileEntry,
    Manifest,
    Policy,
    candidates,
    carry_out,
    commit,
    copy_files,
    count_experts,
    forecast,
    plan_retention,
    quarantine,
    read_manifest,
    remove_leftovers,
    share,
    step_name,
    temporary_name,
    verify,
)
from tailwatch.records import EventKind
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint.errors import (
    CheckpointError,
    RankError,
    SaveError,
    SplitViewError,
    reason_of,
)
from tailwatch.trainer.checkpoint.examine import VIEW_SECONDS, State, agree, look
from tailwatch.trainer.checkpoint.memory import MemoryTier
from tailwatch.trainer.checkpoint.ranks import Ranks
from tailwatch.trainer.checkpoint.writer import OwnershipPlanner, SealingWriter

Tell = Callable[[EventKind, int, dict[str, Any]], None]


class SaveRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What is saved beside the tensors; `started` is when, on the monotonic clock."""

    step: int
    iteration: int
    attempt: int
    extra: dict[str, Any]
    started: float


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """How checkpoints are kept; see `CheckpointStore` for what each means."""

    policy: Policy
    mesh: dict[str, int]
    block_bytes: int = BLOCK_BYTES
    view_seconds: float = VIEW_SECONDS


class Saver:
    """Saves steps of one run; `tell` takes events, on rank 0 only."""

    def __init__(
        self, run: RunDirectory, settings: Settings, tier: MemoryTier | None, tell: Tell
    ) -> None:
        self._run, self._settings, self._tier, self._tell = run, settings, tier, tell

    def save(self, ranks: Ranks, state: State, request: SaveRequest, stage_seconds: float) -> None:
        """Save the state of a step; return when it is verified, or was there already."""
        final = self._run.checkpoints / step_name(request.step)
        try:
            need = _least_bytes(ranks.gather(lambda: _own_bytes(state)))
            if not ranks.decide(lambda: self._make_room(final, request.attempt, need)):
                return
            clock = _Clock(request.started, stage_seconds)
            source = self._to_memory(ranks, state, request, need)
            if source is not None:
                self._copy(ranks, source, request, clock)
            else:
                self._write(ranks, state, request, self._run.checkpoints, clock)
            self._verify(ranks, final, request, clock)
        except (RankError, SplitViewError) as error:
            raise SaveError(f"step {request.step}: {error}", reason=error.reason) from error

    def _make_room(self, final: Path, attempt: int, need: int) -> bool:
        """Clear the way for a step, on rank 0; return whether it is to be written at all."""
        remove_leftovers(self._run.checkpoints, attempt)
        if final.exists():
            finding = verify(final, run=self._run.name)
            if not finding.problems:
                return False
            quarantine(final, finding.problems[0].fault)
        free = shutil.disk_usage(final.parent).free
        if free < need:
            raise CheckpointError(
                f"needs at least {need / 1e6:.1f} MB, {_free(final.parent)}", reason="no space"
            )
        return True

    def _write(
        self,
        ranks: Ranks,
        state: State,
        request: SaveRequest,
        place: Path,
        clock: _Clock | None,
    ) -> None:
        """Write the files into `place` and commit them there; `clock` when that is the disk."""
        temporary = place / temporary_name(request.step, request.attempt)

        def seal(save_id: str, files: dict[str, FileEntry], tensors: dict[str, list[int]]) -> None:
            manifest = Manifest(
                run=self._run.name,
                attempt=request.attempt,
                step=request.step,
                iteration=request.iteration,
                world_size=ranks.size,
                mesh=self._settings.mesh,
                save_id=save_id,
                files=files,
                tensors=tensors,
                experts=count_experts(tensors),
                extra=request.extra,
            )
            if clock is None:
                commit(temporary, manifest)
            else:
                self._commit(temporary, manifest, clock)

        try:
            with quiet_when_alone(ranks):
                dcp_save(
                    dict(state),
                    storage_writer=SealingWriter(temporary, seal, self._settings.block_bytes),
                    planner=OwnershipPlanner(flatten_state_dict=False),
                    process_group=ranks.group,
                    no_dist=ranks.alone,
                )
        except CheckpointException as error:
            if ranks.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            _raise_first(error, request.step, place)

    def _to_memory(
        self, ranks: Ranks, state: State, request: SaveRequest, need: int
    ) -> Path | None:
        """Commit the step in the memory tier and return its place; None where that cannot be."""
        tier = self._tier
        if tier is None or not tier.usable(ranks, need):
            return None
        ranks.decide(lambda: tier.forget(request.attempt, before_step=request.step))
        place = tier.checkpoints / step_name(request.step)
        if ranks.decide(lambda: place.exists() and not verify(place).problems):
            return place
        try:
            self._write(ranks, state, request, tier.checkpoints, None)
        except SaveError as error:
            # The disk has yet to be asked.
            self._failed(ranks, request.step, f"memory tier: {error}", error.reason)
            return None
        return place

    def _copy(self, ranks: Ranks, source: Path, request: SaveRequest, clock: _Clock) -> None:
        """Bring a checkpoint from memory to the disk, each rank its share, and commit it."""
        temporary = self._run.checkpoints / temporary_name(request.step, request.attempt)
        ranks.decide(temporary.mkdir)
        try:
            manifest = read_manifest(source)
            mine = share(manifest, ranks.rank, ranks.size)
            ranks.gather(lambda: copy_files(source, temporary, manifest, mine))
            ranks.decide(lambda: self._commit(temporary, manifest, clock))
        except RankError:
            if ranks.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _commit(self, temporary: Path, manifest: Manifest, clock: _Clock) -> None:
        step = manifest.step
        detail = {"checkpoint": step_name(step), "bytes": manifest.total_bytes}
        clock.lap("write")
        self._tell("checkpoint_written", step, detail | clock.detail())
        commit(temporary, manifest)
        self._run.mark_committed(step)
        clock.lap("commit")
        self._tell("checkpoint_committed", step, detail | clock.detail())

    def _verify(self, ranks: Ranks, final: Path, request: SaveRequest, clock: _Clock) -> None:
        run, step = self._run.name, request.step
        sights, _ = look(ranks, run, final, {}, self._settings.view_seconds)
        refusal = agree(ranks, run, final, step, sights)
        if refusal is not None:
            lost = msgspec.structs.asdict(refusal) | {"steps_lost": None}
            ranks.decide(lambda: self._tell("checkpoint_refused", step, lost))
            raise SaveError(
                f"step {step} does not read back as it was written: {refusal.reason};"
                f" kept as {refusal.quarantined_as}",
                reason="does not read back",
            )
        size = sum(sight.bytes_read for sight in sights)
        ranks.decide(lambda: self._conclude(final, request, size, clock))

    def _conclude(self, final: Path, request: SaveRequest, size: int, clock: _Clock) -> None:
        """Retire older checkpoints and tell how the disk stands, on rank 0."""
        clock.lap("verify")
        step, place = request.step, final.parent
        detail: dict[str, Any] = {"checkpoint": final.name, "bytes": size}
        try:
            policy = self._settings.policy
            plan = plan_retention(place, policy, verified_step=step)
            carry_out(place, plan)
            if self._tier is not None:
                self._tier.forget(request.attempt, before_step=step)
            outlook = forecast(place, policy, plan)
            detail |= {"saves_until_full": outlook.saves, "exceeds_quota": plan.exceeds}
        except OSError as error:
            # What could not be deleted costs space, not the checkpoint that was just made.
            told = {"checkpoint": f"retention: {error}"[:512], "reason": "retention"}
            self._tell("failure", step, told)
        clock.lap("retain")
        self._tell("checkpoint_verified", step, detail | disk_state(place) | clock.detail())

    def _failed(self, ranks: Ranks, step: int, message: str, reason: str) -> None:
        told = {"checkpoint": message[:512], "reason": reason}
        ranks.decide(lambda: self._tell("failure", step, told))


class _Clock:
    """Seconds of a save by phase, on rank 0."""

    def __init__(self, started: float, stage_seconds: float) -> None:
        self._started = started
        self._phases = {"stage": stage_seconds} if stage_seconds else {}
        self._last = started + stage_seconds

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self._phases[phase] = now - self._last
        self._last = now

    def detail(self) -> dict[str, Any]:
        return {"seconds": self._last - self._started, "phases": dict(self._phases)}


def disk_state(place: Path) -> dict[str, int]:
    """Return what is free where checkpoints lie, and how many of them are quarantined."""
    stat = os.statvfs(place)
    found = {
        "free_bytes": stat.f_bavail * stat.f_frsize,
        "quarantined": sum(c.state == "quarantined" for c in candidates(place)),
    }
    # File systems that make inodes as they need them say 0 of 0.
    return found | ({"free_inodes": stat.f_favail} if stat.f_files else {})


@contextmanager
def quiet_when_alone(ranks: Ranks) -> Iterator[None]:
    """Silence DCP's warning that there is no process group, where there is meant to be none."""
    with warnings.catch_warnings():
        if ranks.alone:
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def first_failure(error: CheckpointException) -> tuple[str, BaseException]:
    """Return the failure of the lowest rank in words, and as an exception."""
    rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
    return f"rank {rank}: {type(cause).__name__}: {cause}", cause


def _raise_first(error: CheckpointException, step: int, place: Path) -> NoReturn:
    words, cause = first_failure(error)
    reason = reason_of(cause)
    raise SaveError(f"step {step}: {words} ({_free(place)})", reason=reason) from error


def _own_bytes(state: State) -> tuple[int, int]:
    """Return the bytes of a rank's experts, which are nobody else's, and of the rest."""
    experts = rest = 0
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is not a tensor; other state belongs into `extra`")
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        size = local.numel() * local.element_size()
        if ".experts." in name and not isinstance(tensor, DTensor):
            experts += size
        else:
            rest += size
    return experts, rest


def _least_bytes(own: list[tuple[int, int]]) -> int:
    """Return what a checkpoint takes at least: all experts, and the rest once."""
    return sum(experts for experts, _ in own) + max(rest for _, rest in own)


def _free(path: Path) -> str:
    stat = os.statvfs(path)
    return f"{stat.f_bavail * stat.f_frsize / 1e6:.1f} MB and {stat.f_favail} inodes free"
