"""A plan that cannot work is refused in one line with file and field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailwatch.chaos.plan import DEMO_PLAN, load_plan, select
from tailwatch.errors import UsageError

Edit = Callable[[dict[str, Any]], Any]


def _set(*path: Any, value: Any) -> Edit:
    def edit(plan: dict[str, Any]) -> None:
        at: Any = plan
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (_set("colour", value=1), "colour"),
        (_set("criteria", "n_eff", value=100), "criteria.n_eff"),
        (_set("criteria", "n_eff", value="many"), "criteria.n_eff"),
        (_set("criteria", "recovery_over", value=150), "criteria.recovery_over"),
        (_set("experiments", value=[]), "experiments"),
        (_set("experiments", 0, "fault", value="meteor"), "experiments[0].fault"),
        (_set("experiments", 0, "delay_seconds", value=0.001), "experiments[0].delay_seconds"),
        (_set("experiments", 1, "delay_seconds", value=1.0), "experiments[1].delay_seconds"),
        (_set("experiments", 1, "name", value="rank-slow"), "experiments[0].name"),
        (_set("experiments", 1, "name", value="Kill It"), "experiments[1].name"),
        (_set("experiments", 1, "hypothesis", value=" "), "experiments[1].hypothesis"),
        (_set("experiments", 1, "expected", value=[]), "experiments[1].expected"),
        (_set("experiments", 1, "target", value={"rank": -1}), "experiments[1].target.rank"),
        (_set("experiments", 3, "target", value={"rank": 1}), "experiments[3].target.rank"),
        (_set("experiments", 2, "forbidden", value=["JobRestarted"]), "experiments[2].forbidden"),
        (
            _set("experiments", 0, "expected", 0, "labels", value={"rank": "{pod}"}),
            "experiments[0].expected[0].labels.rank",
        ),
        (_set("experiments", 0, "hold_seconds", value=0), "experiments[0].hold_seconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_impossible_plan_is_refused_by_field(edit: Edit, says: str, tmp_path: Path) -> None:
    """The message is one line that starts with the file and names the field."""
    data = json.loads(DEMO_PLAN.read_text())
    edit(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError) as caught:
        load_plan(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert says in text
    assert "\n" not in text


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"name": "x"'])
def test_what_is_no_plan_at_all_is_refused(content: str, tmp_path: Path) -> None:
    """Broken JSON and JSON of another shape are refused, not crashed on."""
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(UsageError):
        load_plan(path)


def test_a_missing_plan_is_refused(tmp_path: Path) -> None:
    """A file that is not there is one line."""
    with pytest.raises(UsageError, match="cannot be read"):
        load_plan(tmp_path / "none.json")


def test_the_demo_plan_has_the_four_experiments_in_order() -> None:
    """The shipped plan is valid and whole."""
    faults = [experiment.fault for experiment in load_plan(DEMO_PLAN).experiments]
    assert faults == ["rank-slow", "rank-kill", "checkpoint-corrupt", "node-drain"]


def test_one_experiment_can_be_picked_by_name() -> None:
    """`--only` leaves that one; an unknown name is refused with the known ones."""
    plan = load_plan(DEMO_PLAN)
    assert [e.name for e in select(plan, "rank-kill").experiments] == ["rank-kill"]
    with pytest.raises(UsageError, match="rank-slow, rank-kill"):
        select(plan, "rank-fast")
