"""Megatron-LM and NeMo: `iter_0000100/` with one directory a model-parallel rank, or torch_dist.

Contract: the ranks in the names must fill the whole grid of tensor, pipeline and expert ranks; what
each file says about its iteration and the sizes of the job must agree with the directory. With
torch_dist (`metadata.json`, `common.pt`, DCP shards) it loads at any size. `integrity.json`, where
there is one, has a SHA-256 for each file, which makes the verdict `valid`.

Source: megatron/training/checkpointing.py, megatron/core/dist_checkpointing/integrity.py.

Cost: with `integrity.json` one more pass, at the speed of SHA-256 (about 2 GiB/s).
"""

from __future__ import annotations

import hashlib
import re
from itertools import product
from typing import Any

from tailwatch.integrity.foreign.contents import Content
from tailwatch.integrity.foreign.findings import Judgement
from tailwatch.integrity.foreign.pickles import lookup
from tailwatch.integrity.foreign.torch_save import number
from tailwatch.integrity.foreign.tree import Opened, Tree

RANK = re.compile(r"(?:tp_rank_\d+_pp_rank_\d+|mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?)")
_MODEL = ("model_optim_rng.pt", "model_rng.pt", "model_weights.ckpt")
_COMPANIONS = ("model_optim_rng.pt", "model_rng.pt", "optim.pt", "distrib_optim.pt")
RANKS = 100_000


def recognises(tree: Tree, folder: str) -> bool:
    """Whether a folder is one iteration."""
    names = {entry.base for entry in tree.files(folder)}
    if names & {"common.pt", "integrity.json"} or {"metadata.json", ".metadata"} <= names:
        return True
    return any(
        RANK.fullmatch(entry.base) and entry.kind == "directory" and entry.folder == folder
        for entry in tree.entries.values()
    )


def check(tree: Tree, folder: str, judgement: Judgement, contents: dict[str, Content]) -> None:
    """Judge one iteration."""
    ranks = [
        entry
        for entry in tree.entries.values()
        if entry.kind == "directory" and entry.folder == folder and RANK.fullmatch(entry.base)
    ]
    if ranks:
        _legacy(tree, folder, [entry.base for entry in ranks], judgement, contents)
    elif tree.file(f"{folder}metadata.json") or tree.file(f"{folder}common.pt"):
        _distributed(tree, folder, judgement, contents)
    if tree.file(f"{folder}integrity.json"):
        _integrity(tree, folder, judgement, contents)


def _legacy(
    tree: Tree, folder: str, ranks: list[str], judgement: Judgement, contents: dict[str, Content]
) -> None:
    places = {
        tuple(int(part) for part in match.groups() if part is not None): rank
        for rank in ranks
        if (match := RANK.fullmatch(rank)) and match[1]
    }
    files = {
        rank: {e.base for e in tree.entries.values() if e.folder == f"{folder}{rank}/"}
        for rank in ranks
    }
    wanted = {name for found in files.values() for name in found if name in _COMPANIONS}
    for rank, found in sorted(files.items()):
        if not found & set(_MODEL):
            name = f"{folder}{rank}/{min(wanted & set(_MODEL), default=_MODEL[0])}"
            judgement.add(name, "missing", "is missing: this rank has no model", "missing")
        for name in sorted(wanted & {"optim.pt", "distrib_optim.pt"} - found):
            text = "is missing: other ranks have it"
            judgement.add(f"{folder}{rank}/{name}", "missing", text, "missing")
    values = [
        (name, contents[name].value)
        for rank in ranks
        for base in _MODEL
        if (name := f"{folder}{rank}/{base}") in contents
    ]
    sizes = _sizes(places, [lookup(value, "args") for _, value in values])
    lengths = {len(place) for place in places}
    if len(lengths) == 1:
        extent = sizes[: lengths.pop()]
        count = 1
        for size in extent:
            count *= size
        for place in product(*map(range, extent)) if count <= RANKS else []:
            if place not in places:
                name = "mp_rank_" + "_".join(
                    f"{part:0{2 if at == 0 else 3}d}" for at, part in enumerate(place)
                )
                text = f"is missing: {len(places)} of {count} model-parallel ranks are there"
                judgement.add(f"{folder}{name}", "missing", text, "missing")
    for name, value in values:
        held = number(value, "iteration")
        if held is not None and judgement.step is not None and held != judgement.step:
            text = f"is of a mixed step: it holds iteration {held}, the directory says"
            judgement.add(name, "mixed", f"{text} {judgement.step}")
    names = ("tp", "pp", "ep")
    parts = [f"{label}={size}" for label, size in zip(names, sizes, strict=False)]
    judgement.world = ", ".join([*parts, "any dp"])


def _sizes(places: dict[tuple[int, ...], str], arguments: list[Any]) -> list[int]:
    """Return the extent of each axis of ranks, from the names and from what the files say."""
    width = max((len(place) for place in places), default=0)
    sizes = [max(1 + p[axis] for p in places if len(p) > axis) for axis in range(width)]
    keys = (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "expert_model_parallel_size",
    )
    for axis in range(min(width, 3)):
        said = [number(found, keys[axis]) or 0 for found in arguments]
        sizes[axis] = max([sizes[axis], *said])
    # Without a second number there is one pipeline stage.
    return sizes or [1]


def _distributed(
    tree: Tree, folder: str, judgement: Judgement, contents: dict[str, Content]
) -> None:
    for base in ("common.pt", "metadata.json"):
        if f"{folder}{base}" not in tree.entries:
            text = "is missing: without it the distributed checkpoint was never finished"
            judgement.add(f"{folder}{base}", "missing", text, "unfinished")
    described = contents.get(f"{folder}metadata.json", Content()).value
    backend = lookup(described, "sharded_backend")
    if backend == "torch_dist" and f"{folder}.metadata" not in tree.entries:
        text = "is missing: the shards of the distributed checkpoint were never finished"
        judgement.add(f"{folder}.metadata", "missing", text, "unfinished")
    held = number(contents.get(f"{folder}common.pt", Content()).value, "iteration")
    if held is not None and judgement.step is not None and held != judgement.step:
        text = f"is of a mixed step: it holds iteration {held}, the directory says {judgement.step}"
        judgement.add(f"{folder}common.pt", "mixed", text)
    judgement.world = "any"


def _integrity(tree: Tree, folder: str, judgement: Judgement, contents: dict[str, Content]) -> None:
    manifest = f"{folder}integrity.json"
    value = contents.get(manifest, Content()).value
    listed = lookup(value, "files")
    if not isinstance(listed, dict) or lookup(value, "algorithm") not in ("sha256", None):
        if not judgement.has_flaw(manifest):
            judgement.add(manifest, "changed", "is changed: it is no list of SHA-256 digests")
        return
    for base, digest in sorted(listed.items()):
        name = f"{folder}{base}"
        entry = tree.file(name)
        if entry is None:
            judgement.add(name, "missing", "is missing: integrity.json lists it", "missing")
        elif not judgement.has_flaw(name):
            try:
                found = hashlib.sha256()
                with Opened(entry.path) as window:
                    for chunk in window.chunks(0, window.size):
                        found.update(chunk)
            except OSError:
                judgement.add(name, "unreadable", "is unreadable: it cannot be read", "unreadable")
                continue
            if found.hexdigest() == digest:
                judgement.unchecked.discard(name)
            else:
                text = "is changed: it does not match its SHA-256 in integrity.json"
                judgement.add(name, "changed", text)
    judgement.unchecked.discard(manifest)
