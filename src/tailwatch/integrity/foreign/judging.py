"""One checkpoint that others wrote: every file in it, then what its format says about the whole.

Contract: a checkpoint may be of several formats at once, as a Trainer's with DeepSpeed's shards
inside; each folder is judged by every format that recognises it. The format that is named is that
of the outermost. What no format recognises is never valid and never what a restart would load.

Cost: one pass over everything, see the formats.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tailwatch.integrity.foreign import (
    dcp,
    deepspeed,
    hugging_face,
    markers,
    megatron,
    torch_save,
)
from tailwatch.integrity.foreign.contents import Content, examine
from tailwatch.integrity.foreign.findings import Judgement
from tailwatch.integrity.foreign.names import is_temporary, parse_step
from tailwatch.integrity.foreign.tree import Entry, Tree

LOOSE = (".ckpt", ".pt", ".pth", ".safetensors", ".nemo")
"""Endings of files that may be a checkpoint by themselves."""

ORBAX = ("_CHECKPOINT_METADATA", "manifest.ocdbt", "_METADATA", "commit_success.txt")


def judge_directory(
    path: Path,
    name: str,
    tree: Tree | None = None,
    *,
    by: Callable[[str], int | None] = parse_step,
) -> Judgement:
    """Judge a directory; `by` reads the step off its `name`, `tree` is what lies below it."""
    judgement = Judgement(name=name, step=by(name), format="unknown")
    if is_temporary(name):
        judgement.state = "temporary"
    tree = tree or Tree.scan(path)
    if not any(e.kind != "directory" for e in tree.entries.values()):
        judgement.format = "empty"
        return judgement
    handled: set[str] = set()
    saves = [folder for folder in tree.folders() if dcp.recognises(tree, folder)]
    for folder in saves:
        handled |= dcp.check(tree, folder, judgement)
    contents: dict[str, Content] = {}
    for entry in tree.entries.values():
        if entry.name in handled:
            judgement.sizes[entry.name] = entry.size
        else:
            contents[entry.name] = examine(entry, judgement)
    if not tree.whole:
        judgement.add("", "too large", "has more below it than is looked at", "doubtful")
    formats = {"dcp"} if saves else set()
    for folder in tree.folders():
        markers.check(tree, folder, judgement)
        for module, word in (
            (deepspeed, "deepspeed"),
            (megatron, "megatron"),
            (hugging_face, "hugging_face"),
        ):
            if module.recognises(tree, folder):
                module.check(tree, folder, judgement, contents)
                formats.add(word)
    judgement.format = _format(tree, formats, contents)
    if judgement.format == "unknown" and not judgement.flaws:
        text = "holds nothing that is known as a checkpoint here"
        judgement.add("", "unknown", text, "unreadable")
    if judgement.format == "orbax":
        text = "is Orbax's: its arrays are not looked at"
        judgement.add("", "unknown", text, "doubtful")
    return judgement


def _format(tree: Tree, formats: set[str], contents: dict[str, Content]) -> str:
    top = {name.partition("/")[0] for name in tree.entries}
    if {"weights", "context"} <= top:
        return "nemo"
    if top & set(ORBAX):
        return "orbax"
    if hugging_face.STATE in top:
        return "hugging_face"
    for word in ("deepspeed", "megatron", "dcp"):
        if word in formats:
            return word
    weights = {name for name, content in contents.items() if content.weights}
    if "hugging_face" in formats:
        only = all(c.tensors is not None for c in contents.values() if c.weights)
        plain = not {"optimizer.pt", "optimizer.bin", "adapter_config.json"} & top
        return "safetensors" if weights and only and plain else "hugging_face"
    return _loose_format(weights)


def _loose_format(names: set[str]) -> str:
    for suffix, word in ((".nemo", "nemo"), (".safetensors", "safetensors")):
        if any(name.endswith(suffix) for name in names):
            return word
    torch = any(name.endswith((".pt", ".pth", ".ckpt", ".pkl", ".bin")) for name in names)
    return "torch_save" if torch else "unknown"


def judge_file(entry: Entry) -> Judgement:
    """Judge a file that is a checkpoint by itself."""
    judgement = Judgement(name=entry.name, step=parse_step(entry.name), format="unknown")
    content = examine(entry, judgement)
    if judgement.step is None:
        judgement.step = torch_save.number(content.value, "global_step", "iteration", "step")
    judgement.format = _loose_format({entry.name} if content.weights else set())
    if judgement.format == "unknown" and entry.name.lower().endswith((*LOOSE, ".bin")):
        judgement.format = _loose_format({entry.name})
    judgement.world = "any"
    return judgement
