"""Marks of completion: what they are worth when files are newer than they are.

Contract: a rank's marker must be younger than that rank's files, a mark for all than all files. A
file that was written more than `SLACK_SECONDS` after its mark was overwritten later, by a save
that did not come to its end. Ranks without a marker where others have one never confirmed. A mark
without data vouches for nothing.

Times of modification are evidence only where they survive: a copy without them (`cp -r` instead of
`cp -a`) looks like an overwritten save, and the sentence says so. `.metadata` is no pure marker,
and directories are often put together from copies, so shards newer than it are only doubted.
"""

from __future__ import annotations

import re

from tailwatch.integrity.foreign import dcp
from tailwatch.integrity.foreign.contents import MARKER
from tailwatch.integrity.foreign.findings import Effect, Judgement
from tailwatch.integrity.foreign.tree import Entry, Tree

SLACK_SECONDS = 5.0

_RANK_MARKER = re.compile(
    r"(\.?(?:rank|node|worker)[-_]?)(\d+)([-_.](?:complete|completed|done|success))", re.IGNORECASE
)
_COPY = "or it was copied without its times"


def check(tree: Tree, folder: str, judgement: Judgement) -> None:
    """Judge the marks in a folder against the files there."""
    here = tree.files(folder)
    marks = [e for e in here if MARKER.fullmatch(e.base)]
    data = [e for e in here if e not in marks and e.base != dcp.METADATA]
    _ranks(marks, here, folder, judgement)
    for mark in here:
        # `.metadata` and marks for all are written last, after every rank has finished.
        whole = mark in marks and not _RANK_MARKER.fullmatch(mark.base)
        if not whole and mark.base != dcp.METADATA:
            continue
        for entry in data:
            if whole:
                _compare(mark, entry, judgement, "corrupt")
            elif dcp.SHARD.fullmatch(entry.base):
                _compare(mark, entry, judgement, "doubtful")
    if marks and not any(e.kind != "directory" and e not in marks for e in tree.entries.values()):
        text = "is a marker without data: it says that the save is complete, all of it is missing"
        judgement.add(marks[0].name, "missing", text, "missing")


def _ranks(marks: list[Entry], here: list[Entry], folder: str, judgement: Judgement) -> None:
    found = {int(m[2]): (e, m) for e in marks if (m := _RANK_MARKER.fullmatch(e.base))}
    if not found:
        return
    shards: dict[int, list[Entry]] = {}
    for entry in here:
        if match := dcp.SHARD.fullmatch(entry.base):
            shards.setdefault(int(match[1]), []).append(entry)
    like = next(iter(found.values()))[1]
    # A gap in what the markers count, or a rank with files and no marker.
    expected = set(shards) | set(range(min(max(found) + 1, 100_000)))
    for rank in sorted(expected - set(found)):
        digits = str(rank).zfill(len(like[2]) if like[2].startswith("0") else 1)
        text = f"is missing: rank {rank} never confirmed that its part is complete"
        judgement.add(f"{folder}{like[1]}{digits}{like[3]}", "missing", text, "missing")
    for rank, (mark, _) in sorted(found.items()):
        for entry in shards.get(rank, []):
            _compare(mark, entry, judgement, "corrupt")


def _compare(mark: Entry, entry: Entry, judgement: Judgement, effect: Effect) -> None:
    late = entry.mtime - mark.mtime
    told = any(f.file == entry.name and f.fault == "stale" for f in judgement.flaws)
    if late > SLACK_SECONDS and not told:
        text = (
            f"is newer than {mark.base}, by {_span(late)}: the marker is stale, left from an"
            f" earlier save of this step that was overwritten ({_COPY})"
        )
        judgement.add(entry.name, "stale", text, effect)


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
