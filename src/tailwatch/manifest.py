"""What a run was made of: `manifest.json`, written once when the run directory is made.

Contract: plain data, enough to tell whether two runs can be compared: configuration, versions and
digests of the installed libraries, git state, environment that changes how torch communicates,
machine and topology. A fact that cannot be had is absent. Cost: a few small files read, and two
calls of git.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import tailwatch

SCHEMA = "tailwatch.manifest/1"
LIBRARIES = ("torch", "numpy", "msgspec", "xxhash")
# Variables by which the same code communicates or computes in another way.
PREFIXES = ("OMP_", "MKL_", "TORCH_", "NCCL_", "GLOO_", "FI_", "OFI_", "DEEP_EP_", "CUDA_")


def describe(
    *, config: Any, workload: str, nodes: list[str], ranks_per_node: int, backend: str, **more: Any
) -> dict[str, Any]:
    """Return the manifest of a run; `more` are further facts of whoever starts it."""
    return {
        "schema": SCHEMA,
        "tailwatch": tailwatch.__version__,
        "trainer": config,
        "workload": workload,
        "topology": {"nodes": nodes, "ranks_per_node": ranks_per_node},
        "world_size": len(nodes) * ranks_per_node,
        "expert_parallel": {"backend": backend},
        "libraries": {name: facts for name in LIBRARIES if (facts := _library(name))},
        "git": _git(Path(__file__).resolve().parent),
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)
        },
        "machine": {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
            "processor": platform.machine(),
            "cores": os.cpu_count(),
        },
        **more,
    }


def _library(name: str) -> dict[str, str] | None:
    """Version of an installed distribution, and a digest of the list of its files' digests."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    facts = {"version": found.version}
    record = found.read_text("RECORD")
    if record is not None:
        facts["record_sha256"] = hashlib.sha256(record.encode()).hexdigest()
    return facts


def _git(directory: Path) -> dict[str, Any] | None:
    """Commit of the checkout this code runs from, and whether it was changed since."""

    def ask(*arguments: str) -> str | None:
        command = ["git", "-C", str(directory), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "changed": bool(ask("status", "--porcelain", "--untracked-files=no"))}
