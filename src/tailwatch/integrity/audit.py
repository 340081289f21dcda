"""An audit of a directory of checkpoints: which are good, which would be loaded, what that loses.

Contract: judges with `verify` and changes nothing. Takes a run directory, its `checkpoints/`, or
one checkpoint. The verdict of a directory is that of its newest committed checkpoint, because that
is what a restart wants. What others wrote is `unverifiable`: nothing in it says what its bytes
should be.

Cost: one pass over all bytes of all checkpoints in it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tailwatch.errors import UsageError
from tailwatch.integrity.names import Candidate, State, candidates, parse_name
from tailwatch.integrity.verify import CheckpointVerdict, Finding, verify

FORMAT = "tailwatch"

EXIT_CODES: dict[CheckpointVerdict, int] = {
    "valid": 0,
    "corrupt": 1,
    "incomplete": 1,
    "empty": 1,
    "unverifiable": 3,
}


class AuditedFile(msgspec.Struct, kw_only=True):
    """A file as the manifest has it, or as it was found; `faults` are plain words, `blocks` bad."""

    name: str
    size: int | None
    faults: list[str] = []
    blocks: list[int] = []


class AuditedCheckpoint(msgspec.Struct, kw_only=True):
    """One checkpoint; `reasons` are sentences, empty when it is valid."""

    name: str
    step: int | None
    state: State
    verdict: CheckpointVerdict
    reasons: list[str]
    files: list[AuditedFile]


class Audit(msgspec.Struct, kw_only=True):
    """The whole directory, newest checkpoint first.

    `latest` is the newest committed one, `would_load` the newest valid one, `steps_lost` how far
    apart they are; None where there is none.
    """

    path: str
    format: str
    verdict: CheckpointVerdict
    latest: str | None
    would_load: str | None
    steps_lost: int | None
    candidates: list[AuditedCheckpoint]


def audit(path: Path) -> Audit:
    """Judge what lies at `path`; raise UsageError when nothing does or it cannot be read."""
    if not path.exists():
        raise UsageError("no such directory", source=path)
    if not path.is_dir():
        return _foreign(path, "a file, not a directory of checkpoints")
    try:
        found = _find(path)
        if not found:
            entries = sorted(os.listdir(path))
            if entries and not (path / "checkpoints").is_dir():
                return _foreign(path, f"no checkpoint of ours among {len(entries)} entries")
        audited = [_audit_one(candidate) for candidate in found]
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", source=path) from error
    ranked = [a for a in audited if a.state == "committed"] or audited
    good = next((a for a in ranked if a.verdict == "valid" and a.state == "committed"), None)
    latest = next((a for a in ranked if a.state == "committed"), None)
    lost = None
    if good is not None and latest is not None:
        lost = (latest.step or 0) - (good.step or 0)
    return Audit(
        path=str(path),
        format=FORMAT,
        verdict=ranked[0].verdict if ranked else "empty",
        latest=latest.name if latest else None,
        would_load=good.name if good else None,
        steps_lost=lost,
        candidates=audited,
    )


def _find(path: Path) -> list[Candidate]:
    own = parse_name(path.resolve())
    if own is not None:
        return [own]
    return candidates(path) or candidates(path / "checkpoints")


def _audit_one(candidate: Candidate) -> AuditedCheckpoint:
    finding = verify(candidate.path)
    reasons = [f"{candidate.name}/{problem}" for problem in finding.problems]
    verdict = finding.verdict
    if candidate.state == "temporary":
        verdict = "incomplete" if verdict == "valid" else verdict
        reasons.insert(0, f"{candidate.name} was never committed")
    elif candidate.state == "quarantined":
        reasons.insert(0, f"{candidate.name} was quarantined")
    return AuditedCheckpoint(
        name=candidate.name,
        step=candidate.step,
        state=candidate.state,
        verdict=verdict,
        reasons=reasons,
        files=_files(finding),
    )


def _files(finding: Finding) -> list[AuditedFile]:
    entries = finding.manifest.files if finding.manifest else {}
    files = {n: AuditedFile(name=n, size=e.size) for n, e in sorted(entries.items())}
    for problem in finding.problems:
        file = files.setdefault(problem.file, AuditedFile(name=problem.file, size=None))
        if problem.fault not in file.faults:
            file.faults.append(problem.fault)
        if problem.block is not None:
            file.blocks.append(problem.block)
    return list(files.values())


def _foreign(path: Path, reason: str) -> Audit:
    return Audit(
        path=str(path),
        format="unknown",
        verdict="unverifiable",
        latest=None,
        would_load=None,
        steps_lost=None,
        candidates=[
            AuditedCheckpoint(
                name=path.name,
                step=None,
                state="committed",
                verdict="unverifiable",
                reasons=[f"{path.name}: {reason}; nothing to check its bytes with"],
                files=[],
            )
        ],
    )
