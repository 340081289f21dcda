"""Flight recorder dumps of a job that a test makes up."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

START_NS = 1_758_610_505_000_000_000


class Recorder:
    """The recorder of one rank.

    Args:
        rank: of the job.
        groups: members by name.
    """

    def __init__(self, rank: int, groups: dict[str, list[int]], version: str = "2.9") -> None:
        self.rank = rank
        self.groups = {name: ranks for name, ranks in groups.items() if rank in ranks}
        self.version = version
        self.entries: list[dict[str, Any]] = []
        self.collectives = dict.fromkeys(self.groups, 0)
        self.sends = dict.fromkeys(self.groups, 0)
        self.completed = dict.fromkeys(self.groups, 0)

    def call(
        self,
        group: str,
        name: str = "all_reduce",
        *,
        done: bool = False,
        size: int = 8,
        state: str = "",
        **more: Any,
    ) -> None:
        """Enqueue an operation; `name` may be `send 0->1` or `coalesced`."""
        p2p = name.startswith(("send", "recv")) or more.get("is_p2p", False)
        if not more.pop("same", False):
            (self.sends if p2p else self.collectives)[group] += 1
        if done and not p2p:
            self.completed[group] = self.collectives[group]
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": list(self.groups).index(group),
                "process_group": (group, f"group {group}"),
                "collective_seq_id": self.collectives[group],
                "p2p_seq_id": self.sends[group] if p2p else 0,
                "op_id": 0,
                "profiling_name": f"nccl:{name}",
                "input_sizes": [[size]],
                "input_dtypes": ["Float"],
                "output_sizes": [[size]],
                "output_dtypes": ["Float"],
                "state": state or ("completed" if done else "scheduled"),
                "time_created_ns": START_NS + len(self.entries) * 1_000_000,
                "time_discovered_started_ns": START_NS if state == "started" else None,
                "time_discovered_completed_ns": START_NS if done else None,
                "timeout_ms": 600_000,
                "retired": done,
                "is_p2p": p2p,
                **more,
            }
        )

    def content(self, *, status: bool = True) -> dict[str, Any]:
        """Return the dump."""
        return {
            "version": self.version,
            "pg_config": {
                name: {"name": name, "desc": f"group {name}", "ranks": str(ranks)}
                for name, ranks in self.groups.items()
            },
            "pg_status": {
                str(number): {
                    "last_enqueued_collective": self.collectives[name],
                    "last_started_collective": -1,
                    "last_completed_collective": self.completed[name],
                }
                for number, name in enumerate(self.groups)
            }
            if status
            else {},
            "entries": self.entries,
        }


def recorders(world: int, **groups: list[int]) -> list[Recorder]:
    """Return one for each rank; group `0` holds all of them."""
    all_groups = {"0": list(range(world))} | {name.lstrip("g"): of for name, of in groups.items()}
    return [Recorder(rank, all_groups) for rank in range(world)]


def write(directory: Path, ranks: list[Recorder], *, form: str = "pickle", **how: Any) -> Path:
    """Write dumps and return their directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        content = rank.content(**how)
        if form == "json":
            (directory / f"nccl_trace_rank_{rank.rank}.json").write_text(json.dumps(content))
        else:
            (directory / f"_dump_{rank.rank}").write_bytes(pickle.dumps(content, protocol=2))
    return directory
