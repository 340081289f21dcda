"""What a plan alone does not know: workload, targets and alerts are checked before the start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.gameday import small_plan

Change = tuple[list[Any], Any]


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["workload", "heads"], 3, "heads"),
        (["workload", "experts"], 6, "experts"),
        (["workload", "colour"], 1, "colour"),
        (["workload", "d_model"], 10**12, "d_model"),
        (["workload", "seed"], -1, "seed"),
        (["experiments", 0, "target"], {"rank": 99}, "experiments[0].target.rank"),
        (["experiments", 0, "target"], {"node": "node-9"}, "experiments[0].target.node"),
        (["experiments", 0, "target"], {"node": "node-0", "rank": 3}, "experiments[0].target"),
        (["experiments", 1, "forbidden"], ["NoSuchAlert"], "NoSuchAlert"),
        (["experiments", 1, "expected", 0, "name"], "NoSuchAlert", "NoSuchAlert"),
        (["name"], "../escape", "name"),
        (["criteria", "n_eff"], 600, "criteria.n_eff"),
        (["criteria", "recovery_steps"], 10**18, "criteria.recovery_steps"),
        (["experiments", 0, "expected", 0, "deadline_seconds"], 1e300, "deadline_seconds"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["lint", "run"])
def test_a_plan_that_cannot_be_run_here_is_one_line(
    command: str, path: list[Any], value: Any, says: str, tmp_path: Path
) -> None:
    """`gameday lint` and `gameday run` refuse it alike: one line, the field, exit status 2."""
    plan = small_plan(tmp_path / "plan.json")
    data = json.loads(plan.read_text())
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    plan.write_text(json.dumps(data))
    arguments = ["--out", str(tmp_path / "day")] if command == "run" else []
    done = subprocess.run(
        [sys.executable, "-m", "tailwatch", "gameday", command, str(plan), *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert not (tmp_path / "day").exists()


@pytest.mark.parametrize("name", ["a*b", "a[b", "a\\b", "a\nb", "caf\udce9"])
def test_an_awkward_directory_name_is_refused(name: str, tmp_path: Path) -> None:
    """A name that Prometheus or JSON cannot take is refused before anything is started."""
    plan = small_plan(tmp_path / "plan.json")
    done = subprocess.run(
        [sys.executable, "-m", "tailwatch", "gameday", "run", str(plan), "--out", tmp_path / name],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
