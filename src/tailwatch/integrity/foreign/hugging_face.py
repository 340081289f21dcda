"""Hugging Face: `checkpoint-N/` of Trainer and Accelerate, and directories of weights.

Contract: shards named `00002-of-00003` and those of an index must be there, `global_step` in
`trainer_state.json` must be the N of the directory, `rng_state_R.pth` must have no gap. Weights
must be there where their configuration is; what other checkpoints beside it have is compared by
the caller. It loads at any number of processes; random states only at the same.

Source: transformers/trainer.py (`_save_checkpoint`), accelerate/checkpointing.py.
"""

from __future__ import annotations

import re

from tailwatch.integrity.foreign import safetensors
from tailwatch.integrity.foreign.contents import Content
from tailwatch.integrity.foreign.findings import Judgement
from tailwatch.integrity.foreign.torch_save import number
from tailwatch.integrity.foreign.tree import Tree

STATE = "trainer_state.json"
_WEIGHTS = re.compile(r"(?:(?:model|pytorch_model|adapter_model)\b.*\.(?:safetensors|bin))")
_RANDOM = re.compile(r"(rng_state_|random_states_)(\d+)(\.pth|\.pkl)")
_SIGNS = {STATE, "config.json", "adapter_config.json", "optimizer.pt", "optimizer.bin"}


def recognises(tree: Tree, folder: str) -> bool:
    """Whether the files right in a folder are those of a trainer or of a model."""
    return any(
        entry.base in _SIGNS or _WEIGHTS.fullmatch(entry.base) or _RANDOM.fullmatch(entry.base)
        for entry in tree.files(folder)
    )


def check(tree: Tree, folder: str, judgement: Judgement, contents: dict[str, Content]) -> None:
    """Judge one checkpoint."""
    bases = {entry.base for entry in tree.entries.values() if entry.folder == folder}
    check_shards(tree, folder, judgement, contents)
    state = contents.get(f"{folder}{STATE}")
    if state is not None:
        _step(folder, state, judgement)
    elif (
        judgement.name.startswith("checkpoint-")
        and bases & {"optimizer.pt", "scheduler.pt"}
        and STATE not in bases
    ):
        text = "is missing: the trainer writes it last, so the save was never finished"
        judgement.add(f"{folder}{STATE}", "missing", text, "unfinished")
    weights = any(_WEIGHTS.fullmatch(base) for base in bases) or any(
        contents.get(e.name, Content()).weights for e in tree.files() if e.folder != folder
    )
    if bases & {"config.json", "adapter_config.json"} and not weights:
        name = f"{folder}model.safetensors"
        text = "is missing: the configuration of a model is there, its weights are not"
        judgement.add(name, "missing", text, "missing")
    _random(bases, folder, judgement)


def check_shards(
    tree: Tree, folder: str, judgement: Judgement, contents: dict[str, Content]
) -> None:
    """Check sets of numbered shards and their indexes in a folder."""
    held = {
        name: set(content.tensors)
        for name, content in contents.items()
        if content.tensors is not None
    }
    indexed = [e for e in tree.files(folder) if e.base.endswith(".index.json")]
    for entry in indexed:
        if not judgement.has_flaw(entry.name):
            safetensors.check_index(tree, entry.name, held, judgement)
    safetensors.check_numbers(tree, folder, judgement)


def _step(folder: str, state: Content, judgement: Judgement) -> None:
    held = number(state.value, "global_step")
    name = f"{folder}{STATE}"
    if held is None:
        if not judgement.has_flaw(name):
            judgement.add(name, "changed", "is changed: it has no global_step")
    elif judgement.step is None:
        judgement.step = held
    elif held != judgement.step and judgement.state == "committed":
        text = f"is of a mixed step: it holds step {held}, the directory says {judgement.step}"
        judgement.add(name, "mixed", text)


def _random(bases: set[str], folder: str, judgement: Judgement) -> None:
    sets: dict[tuple[str, str], set[int]] = {}
    for base in bases:
        if match := _RANDOM.fullmatch(base):
            sets.setdefault((match[1], match[3]), set()).add(int(match[2]))
    judgement.world = judgement.world or "any"
    for (stem, suffix), ranks in sorted(sets.items()):
        for rank in range(min(max(ranks), 100_000)):
            if rank not in ranks:
                text = f"is missing: ranks up to {max(ranks)} have theirs"
                judgement.add(f"{folder}{stem}{rank}{suffix}", "missing", text, "missing")
        if len(ranks) > 1:
            judgement.world = f"any; random states for {max(ranks) + 1} processes"
