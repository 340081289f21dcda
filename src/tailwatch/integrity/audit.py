"""An audit of a directory of checkpoints: which are good, which would be loaded, what that loses.

Contract: changes nothing. Takes a run directory, its `checkpoints/`, one checkpoint, one file, or
what others wrote. Ours are judged with `verify`, other formats by what their files carry themselves
(package `foreign`). The verdict of a directory is that of its newest candidate, because that is
what a restart wants. A reason is a sentence of ours with the plain word of the fault in it, never
the message of a loader, and any name in it fits one line.

Cost: one pass over all bytes of all checkpoints in it, in bounded memory.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tailwatch.errors import UsageError
from tailwatch.integrity.foreign import Judgement, Survey, shown, survey
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
    """A file; `size` in bytes, None when it is not there; `faults` are plain words, `blocks` bad.

    Ours have the size that the manifest says, others the one that was found.
    """

    name: str
    size: int | None
    faults: list[str] = []
    blocks: list[int] = []


class AuditedCheckpoint(msgspec.Struct, kw_only=True):
    """One checkpoint; `reasons` are sentences, worst first, none when there is nothing to say.

    `world` says at which sizes of a job it loads, None when that is not known.
    """

    name: str
    step: int | None
    state: State
    verdict: CheckpointVerdict
    reasons: list[str]
    files: list[AuditedFile]
    world: str | None = None


class Audit(msgspec.Struct, kw_only=True):
    """The whole directory, newest candidate first, then what was never one.

    `latest` is the newest candidate, `would_load` the newest that is complete as far as can be seen
    (and that a tracker commits to, where the format has one), `steps_lost` how many steps lie
    between them; None where there is none.
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
    if not os.path.lexists(path):
        raise UsageError("no such directory or file", source=shown(str(path)))
    try:
        ours = _find(path) if path.is_dir() else []
        if not ours:
            return _theirs(path, survey(path))
        audited = [_audit_one(candidate) for candidate in ours]
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", source=shown(str(path))) from error
    ranked = [a for a in audited if a.state == "committed"] or audited
    good = next((a for a in ranked if a.verdict == "valid" and a.state == "committed"), None)
    return _result(path, FORMAT, ranked + [a for a in audited if a not in ranked], good)


def _result(
    path: Path, kind: str, found: list[AuditedCheckpoint], good: AuditedCheckpoint | None
) -> Audit:
    latest = next((a for a in found if a.state == "committed"), None)
    lost = None
    if good is not None and latest is not None:
        lost = max(0, (latest.step or 0) - (good.step or 0)) if good is not latest else 0
    return Audit(
        path=_encodable(str(path)),
        format=kind,
        verdict=found[0].verdict if found else "empty",
        latest=latest.name if latest else None,
        would_load=good.name if good else None,
        steps_lost=lost,
        candidates=found,
    )


def _find(path: Path) -> list[Candidate]:
    own = parse_name(path.resolve())
    if own is not None:
        return [own]
    return candidates(path) or candidates(path / "checkpoints")


def _audit_one(candidate: Candidate) -> AuditedCheckpoint:
    finding = verify(candidate.path)
    reasons = [shown(f"{candidate.name}/{problem}") for problem in finding.problems]
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
        world="any",
    )


def _files(finding: Finding) -> list[AuditedFile]:
    entries = finding.manifest.files if finding.manifest else {}
    files = {n: AuditedFile(name=_encodable(n), size=e.size) for n, e in sorted(entries.items())}
    for problem in finding.problems:
        name = _encodable(problem.file)
        file = files.setdefault(problem.file, AuditedFile(name=name, size=None))
        if problem.fault not in file.faults:
            file.faults.append(problem.fault)
        if problem.block is not None:
            file.blocks.append(problem.block)
    return list(files.values())


def _theirs(path: Path, found: Survey) -> Audit:
    audited = [_audit_theirs(judgement) for judgement in found.found]
    sound = [a for a, j in zip(audited, found.found, strict=True) if j.loadable]
    pinned = next((a for a in sound if a.name == found.pinned), None)
    good = pinned or (sound[0] if sound else None)
    return _result(path, found.format, audited, good)


def _audit_theirs(judgement: Judgement) -> AuditedCheckpoint:
    return AuditedCheckpoint(
        name=_encodable(judgement.name),
        step=judgement.step,
        state=judgement.state,
        verdict=judgement.verdict,
        reasons=[shown(reason) for reason in judgement.reasons],
        files=[
            AuditedFile(
                name=_encodable(name),
                size=size,
                faults=sorted({f.fault for f in judgement.flaws if f.file == name}),
            )
            for name, size in sorted(judgement.sizes.items())
        ],
        world=judgement.world,
    )


def _encodable(name: str) -> str:
    """Return a name that JSON can hold: bytes that are no text become `\\xff`-like escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
