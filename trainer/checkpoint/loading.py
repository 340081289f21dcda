"""One load: which checkpoint, agreed by all ranks; verified; then into the tensors.

Contract: collective over `Ranks`. All ranks must see the same committed checkpoints; those that do
not yet are waited for, and when they still do not it is `SplitViewError` on all of them, so no rank
ever loads a step that another does not. Candidates come from the newest step to the oldest, the
memory tier's before the disk's. Nothing live is touched before the whole checkpoint is verified.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgspec
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from tailwatch.integrity import Candidate, Manifest, candidates
from tailwatch.runs import RunDirectory
from tailwatch.trainer.checkpoint.errors import (
    CheckpointError,
    NothingToRestore,
    SplitViewError,
    reason_of,
)
from tailwatch.trainer.checkpoint.examine import Refusal, State, agree, look
from tailwatch.trainer.checkpoint.memory import MemoryTier
from tailwatch.trainer.checkpoint.ranks import Ranks
from tailwatch.trainer.checkpoint.reader import CheckedReader
from tailwatch.trainer.checkpoint.saving import Tell, disk_state, first_failure, quiet_when_alone


class Restored(msgspec.Struct, kw_only=True):
    """What was loaded: `extra` is what `save` was given, `refused` newest first."""

    step: int
    iteration: int
    attempt: int
    checkpoint: str
    extra: dict[str, Any]
    refused: list[Refusal]


class Loader:
    """Loads checkpoints of one run; `tell` takes events, on rank 0 only."""

    def __init__(
        self, run: RunDirectory, view_seconds: float, tier: MemoryTier | None, tell: Tell
    ) -> None:
        self._run, self._view_seconds, self._tier, self._tell = run, view_seconds, tier, tell

    def load(self, ranks: Ranks, state: State, *, from_scratch: bool) -> Restored | None:
        """Restore the newest valid checkpoint; None when there is none and may be none."""
        started = time.monotonic()
        refused: list[Refusal] = []
        found = self._candidates(ranks)
        ever = ranks.decide(self._ever)
        for candidate in found:
            path, name = candidate.path, self._run.name
            sights, manifest = look(ranks, name, path, state, self._view_seconds)
            refusal = agree(ranks, name, path, candidate.step, sights)
            if refusal is not None:
                refused.append(refusal)
                continue
            misfits = sorted({text for sight in sights for text in sight.misfits})
            if misfits:
                raise CheckpointError(
                    f"{candidate.name} does not fit the model in {len(misfits)} places,"
                    f" first: {misfits[0]}",
                    reason="misfit",
                )
            assert manifest is not None
            return self._restore(ranks, candidate, manifest, state, refused, started)
        ranks.decide(lambda: self._tell_refused(refused, 0 if from_scratch else None))
        if ever and not from_scratch:
            raise NothingToRestore(
                f"{self._run.checkpoints}: this run has committed checkpoints, and none of them"
                f" is valid any more ({len(refused)} refused now); it starts again from nothing"
                " only when told to",
                reason="nothing valid",
            )
        return None

    def _candidates(self, ranks: Ranks) -> list[Candidate]:
        """Return what is committed, the same on all ranks; wait for ranks that see less."""
        deadline = time.monotonic() + self._view_seconds
        while True:
            seen = ranks.gather(lambda: (self._names(), time.monotonic() > deadline))
            names = [frozenset(found) for found, _ in seen]
            if len(set(names)) == 1:
                break
            if seen[0][1]:
                everything = frozenset().union(*names)
                rank, lacks = next((r, sorted(everything - n)) for r, n in enumerate(names)
                                   if everything - n)  # fmt: skip
                raise SplitViewError(
                    f"{self._run.checkpoints}: rank {rank} does not see {lacks[-1]}, which others"
                    f" see, for {self._view_seconds:.0f} s",
                    reason="split view",
                )
            time.sleep(0.2)
        disk = [c for c in candidates(self._run.checkpoints) if c.name in names[0]]
        if self._tier is None:
            return disk
        tier = self._tier
        in_memory = ranks.gather(lambda: {c.name for c in tier.committed()})
        shared = set.intersection(*in_memory)
        memory = [c for c in tier.committed() if c.name in shared]
        return sorted([*memory, *disk], key=lambda c: -c.step)

    def _names(self) -> list[str]:
        return [c.name for c in candidates(self._run.checkpoints) if c.state == "committed"]

    def _ever(self) -> bool:
        """Return whether the run ever committed, on rank 0, and remember it if it did."""
        done = [c for c in candidates(self._run.checkpoints) if c.state != "temporary"]
        if done:
            with contextlib.suppress(OSError):  # a read-only disk can be loaded from
                self._run.mark_committed(done[-1].step)
        return bool(done) or self._run.has_committed()

    def _restore(
        self,
        ranks: Ranks,
        candidate: Candidate,
        manifest: Manifest,
        state: State,
        refused: list[Refusal],
        started: float,
    ) -> Restored:
        verified = time.monotonic()
        self._read(ranks, candidate, manifest, state)
        phases = {"load_verify": verified - started, "load": time.monotonic() - verified}
        ranks.decide(lambda: self._tell_restored(candidate, manifest, refused, phases))
        return Restored(
            step=manifest.step,
            iteration=manifest.iteration,
            attempt=manifest.attempt,
            checkpoint=candidate.name,
            extra=manifest.extra,
            refused=refused,
        )

    def _read(self, ranks: Ranks, candidate: Candidate, manifest: Manifest, state: State) -> None:
        try:
            with quiet_when_alone(ranks):
                dcp_load(
                    state,
                    storage_reader=CheckedReader(candidate.path, manifest),
                    planner=DefaultLoadPlanner(flatten_state_dict=False),
                    process_group=ranks.group,
                    no_dist=ranks.alone,
                )
        except CheckpointException as error:
            words, cause = first_failure(error)
            raise CheckpointError(f"{candidate.path}: {words}", reason=reason_of(cause)) from error

    def _tell_restored(
        self,
        candidate: Candidate,
        manifest: Manifest,
        refused: list[Refusal],
        phases: dict[str, float],
    ) -> None:
        self._tell_refused(refused, manifest.step)
        detail = {
            "step": manifest.step,
            "checkpoint": candidate.name,
            "verified": True,
            "tier": "disk" if candidate.path.parent == self._run.checkpoints else "memory",
            "bytes": manifest.total_bytes,
            "seconds": sum(phases.values()),
            "phases": phases,
        }
        self._tell("restore", manifest.step, detail | disk_state(self._run.checkpoints))

    def _tell_refused(self, refused: list[Refusal], restored_step: int | None) -> None:
        for refusal in refused:
            lost = None if restored_step is None else refusal.step - restored_step
            detail = msgspec.structs.asdict(refusal) | {"steps_lost": lost}
            self._tell("checkpoint_refused", refusal.step, detail)
