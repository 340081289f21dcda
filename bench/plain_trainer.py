"""The other side of bench/restart.py: the same rank under torchrun itself and stock torch DCP.

torchrun runs it with the run directory, a folder for rings, and what its launcher would be: pid and
signals play no part. Everything but the launcher and the checkpoints is the product's own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tailwatch.runs import RunDirectory
from tailwatch.trainer.config import config_from
from tailwatch.trainer.launch.place import RankPlace
from tailwatch.trainer.launch.rank import _Attempt
from tailwatch.trainer.launch.restarting import Arrival


class StockCheckpoints:
    """Saves and loads by DCP alone; a file `latest` says which is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.latest = root / "latest"

    def save(self, state: dict[str, Any], *, step: int, iteration: int, **_: Any) -> None:
        """Save."""
        dcp.save(state, checkpoint_id=self.root / f"step-{step}")
        if dist.get_rank() == 0:
            new = self.latest.with_suffix(".new")
            new.write_text(json.dumps({"step": step, "iteration": iteration}))
            new.replace(self.latest)

    def load(self, state: dict[str, Any], **_: Any) -> Any:
        """Load the latest; return its step and iteration, None when there is none."""
        if not self.latest.exists():
            return None
        found = SimpleNamespace(**json.loads(self.latest.read_text()))
        dcp.load(state, checkpoint_id=self.root / f"step-{found.step}")
        return found

    def poll(self) -> None:
        """Nothing is ever in the background."""

    def close(self) -> None:
        """Nothing is held."""


class PlainAttempt(_Attempt):
    """An attempt with stock checkpoints."""

    def _checkpoints(self) -> Any:
        return StockCheckpoints(self.run.checkpoints)


def main(run: str, rings: str) -> None:
    """Train until killed."""
    arrival = Arrival.now()
    place = RankPlace(
        run=Path(run), node="node-0", launcher_pid=os.getppid(), rings=Path(rings),
        doorbell=Path(rings) / "doorbell",
    )  # fmt: skip
    directory = RunDirectory(place.run)
    manifest = msgspec.json.decode(directory.manifest.read_bytes())
    config = config_from(manifest["trainer"], str(directory.manifest))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    PlainAttempt(place, config, directory, arrival).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
