"""Which checkpoints may go, what they take, and when the disk will be full.

Contract: `plan_retention` changes nothing and works from names and manifests alone, so it needs no
memory of earlier calls; `carry_out` does what a plan says. Only committed checkpoints are ever
deleted, and of them only such as are older than the newest *verified* one. What looks damaged is
neither counted among those kept nor deleted, nor is what was quarantined: it is evidence. It does
count for the quota, and a quota that cannot be met without it is said to be exceeded.

Cost: one manifest read per checkpoint; a full pass over the newest when nobody has verified it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from tailwatch.integrity.manifest import MANIFEST_NAME
from tailwatch.integrity.names import candidates, remove_committed
from tailwatch.integrity.verify import verify


class Policy(msgspec.Struct, kw_only=True, frozen=True):
    """What to keep: the newest `keep_last`, each step divisible by `keep_every`, within a quota.

    The quota (bytes on disk, inodes) is for everything in the directory. To meet it the oldest go
    first, also those the other two rules would keep, but never the newest verified one.
    """

    keep_last: int = 4
    keep_every: int | None = None
    max_bytes: int | None = None
    max_inodes: int | None = None

    def __post_init__(self) -> None:
        for field in ("keep_last", "keep_every", "max_bytes", "max_inodes"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field} is {value}, expected at least 1")


class Item(msgspec.Struct, kw_only=True, frozen=True):
    """A directory: what it takes, and why it stays or goes; `committed_ns` is 0 when unknown."""

    name: str
    step: int
    bytes: int
    inodes: int
    why: str
    committed_ns: int = 0


class Plan(msgspec.Struct, kw_only=True):
    """What is to be done; newest first. `bytes` and `inodes` are what is left when it was done.

    `exceeds` says by how much a quota will still be exceeded.
    """

    remove: list[Item]
    keep: list[Item]
    quarantined: list[Item]
    bytes: int
    inodes: int
    exceeds: str = ""


class Forecast(msgspec.Struct, kw_only=True, frozen=True):
    """How many more saves fit, and how long that lasts; None: for ever, or not known."""

    saves: int | None
    seconds: float | None = None
    limit: Literal["bytes", "inodes", ""] = ""


def plan_retention(checkpoints: Path, policy: Policy, *, verified_step: int | None = None) -> Plan:
    """Return what the policy would delete and keep.

    Args:
        checkpoints: the `checkpoints/` directory of a run.
        policy: what to keep.
        verified_step: a step whose bytes the caller has just verified. Without it the newest valid
            one is searched by reading; when there is none, nothing is to be deleted.
    """
    found = candidates(checkpoints)
    committed = [c for c in found if c.state == "committed"]
    if verified_step is None:
        verified_step = next((c.step for c in committed if verify(c.path).verdict == "valid"), None)
    keep: list[Item] = []
    maybe: list[Item] = []
    others = [_item(c.path, c.step, "being written") for c in found if c.state == "temporary"]
    places = 0
    for candidate in committed:
        # Without `files` nothing but the manifest and the set of files is looked at.
        finding = verify(candidate.path, files=())
        step = candidate.step
        if finding.verdict != "valid":
            keep.append(_item(candidate.path, step, f"looks {finding.verdict}: not ours to delete"))
            continue
        places += 1
        if verified_step is None or step >= verified_step:
            why = "newest verified" if step == verified_step else "nothing newer is verified"
            keep.append(_item(candidate.path, step, why))
        elif places <= policy.keep_last:
            maybe.append(_item(candidate.path, step, f"among the newest {policy.keep_last}"))
        elif policy.keep_every and step % policy.keep_every == 0:
            maybe.append(_item(candidate.path, step, f"a multiple of {policy.keep_every}"))
        else:
            maybe.append(_item(candidate.path, step, ""))
    quarantined = [_item(c.path, c.step, "evidence") for c in found if c.state == "quarantined"]
    remove = [item for item in maybe if not item.why]
    maybe = [item for item in maybe if item.why]
    fixed = [*keep, *others, *quarantined]
    while maybe and (over := _over(policy, [*fixed, *maybe])):
        remove.append(msgspec.structs.replace(maybe.pop(), why=over))
    everything = [*fixed, *maybe]
    return Plan(
        remove=sorted(remove, key=lambda item: -item.step),
        keep=sorted([*keep, *maybe], key=lambda item: -item.step),
        quarantined=quarantined,
        bytes=sum(item.bytes for item in everything),
        inodes=sum(item.inodes for item in everything),
        exceeds=_over(policy, everything),
    )


def carry_out(checkpoints: Path, plan: Plan) -> list[str]:
    """Delete what a plan says, oldest first; return the names of those deleted."""
    removed = []
    for item in reversed(plan.remove):
        try:
            remove_committed(checkpoints / item.name)
        except FileNotFoundError:
            continue  # somebody else's plan said the same
        removed.append(item.name)
    return removed


def retain(checkpoints: Path, policy: Policy, *, verified_step: int | None = None) -> list[str]:
    """Plan and carry out; return the names of those deleted."""
    return carry_out(checkpoints, plan_retention(checkpoints, policy, verified_step=verified_step))


def forecast(checkpoints: Path, policy: Policy, plan: Plan | None = None) -> Forecast:
    """Return when the disk or the quota will be full, if saves go on as the last ones did.

    A save needs room for one more checkpoint before an older one may go, and only what
    `keep_every` keeps stays for good.
    """
    plan = plan or plan_retention(checkpoints, policy)
    whole = [item for item in plan.keep if item.committed_ns]
    if len(whole) < 2:
        return Forecast(saves=None)
    newest, before = whole[0], whole[1]
    interval = (newest.committed_ns - before.committed_ns) / 1e9
    stride = max(newest.step - before.step, 1)
    disk = shutil.disk_usage(checkpoints).free
    inodes = os.statvfs(checkpoints).f_favail
    room = {
        "bytes": (min(disk, (policy.max_bytes or plan.bytes + disk) - plan.bytes), newest.bytes),
        "inodes": (
            min(inodes, (policy.max_inodes or plan.inodes + inodes) - plan.inodes),
            newest.inodes,
        ),
    }
    best = Forecast(saves=None)
    for limit in ("bytes", "inodes"):
        free, each = room[limit]
        saves = _saves(free, each, stride, len(plan.keep), newest.step, policy)
        if saves is not None and (best.saves is None or saves < best.saves):
            best = Forecast(saves=saves, seconds=saves * max(interval, 0.0), limit=limit)
    return best


def _saves(free: int, each: int, stride: int, kept: int, step: int, policy: Policy) -> int | None:
    """Return how many saves fit into what is free; None when those that go make the room."""
    fits = free // each
    growing = max(policy.keep_last - kept, 0)
    if fits <= growing:
        return max(fits, 0)
    # One is written before one goes; from here on only multiples of `keep_every` add up.
    spare = fits - growing - 1
    if policy.keep_every is None:
        return None
    saves = growing
    for ahead in range(1, 1_000_001):
        at = step + stride * ahead
        spare -= at % policy.keep_every == 0
        if spare < 0:
            return saves + ahead
    return None


def _over(policy: Policy, items: Iterable[Item]) -> str:
    items = list(items)
    size, inodes = sum(i.bytes for i in items), sum(i.inodes for i in items)
    if policy.max_bytes is not None and size > policy.max_bytes:
        return f"{size - policy.max_bytes} bytes over the quota"
    if policy.max_inodes is not None and inodes > policy.max_inodes:
        return f"{inodes - policy.max_inodes} inodes over the quota"
    return ""


def _item(directory: Path, step: int, why: str) -> Item:
    size = inodes = committed = 0
    try:
        inodes = 1
        with os.scandir(directory) as entries:
            for entry in entries:
                stat = entry.stat(follow_symlinks=False)
                size += stat.st_blocks * 512
                inodes += 1
                if entry.name == MANIFEST_NAME:
                    committed = stat.st_mtime_ns
    except OSError:
        pass  # gone, or not a directory: then it takes nothing worth counting
    return Item(
        name=directory.name, step=step, bytes=size, inodes=inodes, why=why, committed_ns=committed
    )
