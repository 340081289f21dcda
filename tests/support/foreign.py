"""Checkpoints as other frameworks leave them, small, with files of the real libraries."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tailwatch.integrity import Audit, AuditedCheckpoint, audit

FIXTURES = Path(__file__).parents[1] / "integrity" / "fixtures"


def fixture(name: str, target: Path) -> Path:
    """Copy a fixture where it may be changed."""
    copied = target / Path(name).name
    shutil.copytree(FIXTURES / name, copied, symlinks=True)
    return copied


def whole_dcp(target: Path) -> Path:
    """Write the complete save of step 120 that the broken ones were made of."""
    target.mkdir(parents=True)
    for path in (FIXTURES / "dcp-broken" / "noshard" / "step-120").iterdir():
        shutil.copy(path, target)
    shutil.copy(FIXTURES / "dcp-broken" / "nometa" / "step-120" / "__2_0.distcp", target)
    return target


def values(seed: int, size: int = 256) -> torch.Tensor:
    """Return numbers that are those of one seed alone."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def saved(path: Path, value: Any) -> Path:
    """`torch.save`, with the directory made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)
    return path


def hugging_face(root: Path, step: int, *, ranks: int = 2, shards: int = 1) -> Path:
    """Write what a Trainer leaves in `checkpoint-N`."""
    directory = root / f"checkpoint-{step}"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 1.0}))
    weights = {f"layer.{i}.weight": values(step * 10 + i).reshape(16, 16) for i in range(4)}
    if shards == 1:
        save_file(weights, directory / "model.safetensors")
    else:
        where: dict[str, str] = {}
        for shard in range(shards):
            name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            part = {k: v for i, (k, v) in enumerate(weights.items()) if i % shards == shard}
            save_file(part, directory / name)
            where |= dict.fromkeys(part, name)
        total = sum(w.numel() * w.element_size() for w in weights.values())
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    saved(directory / "optimizer.pt", {"state": {0: {"exp_avg": values(step + 7)}}})
    saved(directory / "scheduler.pt", {"last_epoch": step})
    for rank in range(ranks):
        saved(directory / f"rng_state_{rank}.pth", {"cpu": values(rank)})
    return directory


def megatron(root: Path, step: int, *, tp: int = 2, pp: int = 2, track: bool = True) -> Path:
    """Write what Megatron-LM leaves with `--ckpt-format torch`."""
    directory = root / f"iter_{step:07d}"
    args = argparse.Namespace(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)
    for t in range(tp):
        for p in range(pp):
            rank = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "")
            value = {"args": args, "iteration": step, "model": {"w": values(step + 10 * t + p)}}
            saved(directory / rank / "model_optim_rng.pt", value)
    if track:
        (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return directory


def deepspeed(root: Path, step: int, *, dp: int = 4, track: bool = True) -> Path:
    """Write what DeepSpeed leaves with ZeRO stage 2."""
    directory = root / f"global_step{step}"
    model = {"module": {"w": values(step)}, "global_steps": step, "dp_world_size": dp}
    saved(directory / "mp_rank_00_model_states.pt", {**model, "mp_world_size": 1})
    for rank in range(dp):
        value = {"optimizer_state_dict": {"fp32": values(step + rank + 1), "zero_stage": 2}}
        saved(directory / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", value)
    if track:
        (root / "latest").write_text(f"global_step{step}")
    return directory


def only(path: Path) -> AuditedCheckpoint:
    """Audit what holds one checkpoint and return it."""
    (found,) = audit(path).candidates
    return found


def named(result: Audit, name: str) -> AuditedCheckpoint:
    """Return a checkpoint of an audit by its name."""
    return next(c for c in result.candidates if c.name == name)


def cli(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run `tailwatch checkpoint` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tailwatch", "checkpoint", *arguments],
        capture_output=True,
        check=False,
    )
