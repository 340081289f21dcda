"""DeepSpeed: `global_stepN/` with a file for each rank, and what the files say about their number.

Contract: ranks must be there without gaps, as many as `dp_world_size` and `mp_world_size` in the
model states say, and `global_steps` in them must be the step of the directory. ZeRO shards load at
the same sizes only, unless converted to a universal checkpoint.

DeepSpeed itself merely warns of a missing ZeRO shard, and writes `latest` before all are done.

Source: deepspeed/runtime/engine.py (`_get_ckpt_name`, `_get_zero_ckpt_name`).
"""

from __future__ import annotations

import re

from tailwatch.integrity.foreign.contents import Content
from tailwatch.integrity.foreign.findings import Judgement
from tailwatch.integrity.foreign.torch_save import number
from tailwatch.integrity.foreign.tree import Tree

RANKS = 100_000

_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_MODEL_ZERO3 = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_OPTIM = re.compile(r"((?:bf16_|fp16_)?zero_pp_rank_)(\d+)(_mp_rank_)(\d+)(_optim_states\.pt)")


def recognises(tree: Tree, folder: str) -> bool:
    """Whether the files right in a folder are those of a save."""
    return any(
        pattern.fullmatch(entry.base)
        for entry in tree.files(folder)
        for pattern in (_MODEL, _MODEL_ZERO3, _OPTIM)
    )


def check(tree: Tree, folder: str, judgement: Judgement, contents: dict[str, Content]) -> None:
    """Judge the save in a folder."""
    bases = {entry.base: entry.name for entry in tree.files(folder)}
    models = {int(m[1]) for base in bases if (m := _MODEL.fullmatch(base))}
    zero3 = {(int(m[1]), int(m[2])) for base in bases if (m := _MODEL_ZERO3.fullmatch(base))}
    optims = {(int(m[2]), int(m[4])) for base in bases if (m := _OPTIM.fullmatch(base))}
    values = [
        contents[name].value
        for base, name in sorted(bases.items())
        if name in contents and base.endswith("_model_states.pt")
    ]
    dp = max((number(v, "dp_world_size") or 0 for v in values), default=0)
    mp = max((number(v, "mp_world_size") or 0 for v in values), default=0)
    widths = [1 + mp_rank for _, mp_rank in optims | zero3] + [1 + rank for rank in models]
    mp = min(max([mp, *widths]), RANKS)
    seen_dp = max((1 + rank for rank, _ in optims | zero3), default=0)
    stage = max((number(v, "zero_stage") or 0 for v in values), default=0)
    if optims or stage:
        grid = {(d, m) for d in range(min(max(dp, seen_dp), RANKS)) for m in range(min(mp, 64))}
        template = next((m for base in bases if (m := _OPTIM.fullmatch(base))), None)
        prefix = template[1] if template else "zero_pp_rank_"
        _gaps(
            {f"{folder}{prefix}{d}_mp_rank_{m:02d}_optim_states.pt" for d, m in grid - optims},
            "its optimizer states",
            judgement,
        )
    if zero3:
        grid = {(d, m) for d in range(min(max(dp, seen_dp), RANKS)) for m in range(min(mp, 64))}
        _gaps(
            {f"{folder}zero_pp_rank_{d}_mp_rank_{m:02d}_model_states.pt" for d, m in grid - zero3},
            "its model states",
            judgement,
        )
    else:
        absent = set(range(mp)) - models
        _gaps(
            {f"{folder}mp_rank_{rank:02d}_model_states.pt" for rank in absent},
            "its model states",
            judgement,
        )
    for name in sorted(bases.values()):
        held = number(contents[name].value, "global_steps") if name in contents else None
        if held is not None and judgement.step is not None and held != judgement.step:
            text = f"is of a mixed step: it holds step {held}, the directory says {judgement.step}"
            judgement.add(name, "mixed", text)
    if optims or zero3:
        judgement.world = f"dp={max(dp, seen_dp, 1)}, mp={mp}; others after ds_to_universal"
    elif models:
        judgement.world = f"mp={mp}, any dp"


def _gaps(names: set[str], what: str, judgement: Judgement) -> None:
    for name in sorted(names):
        text = f"is missing: one rank never wrote {what}"
        judgement.add(name, "missing", text, "missing")
