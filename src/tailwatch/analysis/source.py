"""What lies at a path, and its diagnosis: a run directory, step logs or an operation trace.

Contract: the kind is told from the content, not from the name. Input that is foreign, damaged,
of several runs or of versions that do not go together raises UsageError: there is no verdict about
half of a file. The one exception is the beginning of a frame at the end of a step log, which every
killed job leaves behind; it is told in the reasons.

Cost: that of reading and of `runrules` or `tracerules`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailwatch.analysis.diagnosis import Diagnosis
from tailwatch.analysis.runrules import diagnose_records
from tailwatch.errors import UsageError
from tailwatch.records import Record, StepRecord, decode
from tailwatch.steplog import damage, payloads

_PARQUET = b"PAR1"


def diagnose_path(path: Path) -> Diagnosis:
    """Return the diagnosis of what lies at `path`."""
    try:
        logs = _logs(path)
        if logs is None:
            from tailwatch.analysis.trace import read_trace
            from tailwatch.analysis.tracerules import diagnose_trace

            return diagnose_trace(read_trace(_trace(path)))
        records: list[Record] = []
        reasons: list[str] = []
        for log in logs:
            records += _read(log, reasons)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", source=path) from None
    runs = sorted({record.run for record in records})
    if len(runs) > 1:
        raise UsageError(f"holds records of several runs: {', '.join(runs[:3])}", source=path)
    if not any(isinstance(record, StepRecord) for record in records):
        raise UsageError("holds no step record of any rank", source=path)
    found = diagnose_records(records, str(path))
    return msgspec.structs.replace(found, reasons=[*found.reasons, *reasons])


def _logs(path: Path) -> list[Path] | None:
    """Return the step logs at a path; None when a trace lies there."""
    if not path.exists():
        raise UsageError("is not there", source=path)
    if not path.is_dir():
        with path.open("rb") as file:
            return None if file.read(len(_PARQUET)) == _PARQUET else [path]
    for directory in (path / "steps", path / "evidence" / "steps", path):
        logs = sorted(directory.glob("*.steplog"))
        if logs:
            return logs
    if (path / "manifest.json").exists():
        raise UsageError("holds no step log: no node agent has watched this run", source=path)
    if any(path.glob("*.parquet")):
        return None
    raise UsageError(
        "is neither a run directory with steps/, nor one with step logs, nor one with a trace",
        source=path,
    )


def _trace(path: Path) -> Path:
    if not path.is_dir():
        return path
    traces = sorted(path.glob("*.parquet"))
    if len(traces) > 1:
        names = ", ".join(trace.name for trace in traces[:4])
        raise UsageError(f"holds {len(traces)} traces, name one of them: {names}", source=path)
    return traces[0]


def _read(path: Path, reasons: list[str]) -> list[Record]:
    data = path.read_bytes()
    found: list[Record] = []
    end = 0
    for behind, payload in payloads(data):
        end = behind
        try:
            found.append(decode(payload))
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"no record of this version: {error}", source=path, place=f"byte {behind}"
            ) from None
    if data and not found:
        raise UsageError("is neither a step log nor a parquet trace", source=path)
    broken = damage(data)
    if broken:
        first, last = broken[0]
        raise UsageError(
            f"bytes {first} to {last} hold no record: the step log is damaged", source=path
        )
    if end < len(data):
        reasons.append(f"{path.name} ends in the middle of a record, as a kill leaves it")
    return found
