"""The command lines of the processes that make a job, for whoever starts them."""

from __future__ import annotations

import sys
from pathlib import Path


def store_command(address: str) -> list[str]:
    """Return the command that serves the rendezvous store on `HOST:PORT`.

    It prints `store on HOST:PORT` when it serves.
    """
    return [sys.executable, "-m", "tailwatch.trainer.launch.store", "--listen", address]


def launcher_command(
    *,
    run: Path,
    node: str,
    store: str,
    ranks: int,
    nodes: int,
    rings: Path,
    doorbell: Path,
    from_scratch: bool = False,
) -> list[str]:
    """Return the command that runs one node of a job of at most `nodes` nodes.

    Args:
        run: the run directory, with the trainer's configuration in its manifest.
        store: `HOST:PORT` of the rendezvous store.
        ranks: ranks of this node.
        rings: ring directory on the node's tmpfs.
        doorbell: the node agent's socket; it need not exist.
        from_scratch: start again from nothing when no checkpoint is valid.
    """
    command = [sys.executable, "-m", "tailwatch.trainer.launch.node"]
    command += ["--run", str(run), "--node", node, "--store", store]
    command += ["--ranks", str(ranks), "--nodes", f"1:{nodes}"]
    command += ["--rings", str(rings), "--doorbell", str(doorbell)]
    return command + (["--from-scratch"] if from_scratch else [])
