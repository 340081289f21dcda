"""A trainer configuration that cannot work is refused by field."""

from __future__ import annotations

from typing import Any

import pytest

from tailwatch.errors import UsageError
from tailwatch.trainer.config import TrainerConfig, config_from


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"layers": 0}, "layers"),
        ({"top_k": 9}, "top_k"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"colour": 1}, "colour"),
        ({"heads": 3}, "heads"),
        ({"checkpoint_keep": 1}, "checkpoint_keep"),
        ({"digits_min": 7}, "digits_min"),
        ([], "Expected"),
    ],
)
def test_an_impossible_value_is_one_line_with_its_field(data: Any, says: str) -> None:
    """The message is one line that names the source and the field."""
    with pytest.raises(UsageError) as caught:
        config_from(data, "plan.json")
    text = str(caught.value)
    assert text.startswith("plan.json: ")
    assert says in text
    assert "\n" not in text


def test_a_world_size_that_does_not_divide_the_experts_is_refused() -> None:
    """Experts are split evenly, so the world size must divide their number."""
    with pytest.raises(UsageError, match="experts"):
        TrainerConfig(experts=8).check(3)


def test_the_workload_names_the_configuration() -> None:
    """Equal configurations have one name, different ones different names."""
    assert TrainerConfig().workload == TrainerConfig().workload
    assert TrainerConfig().workload != TrainerConfig(group=4).workload
    assert TrainerConfig().configuration(4) != TrainerConfig().configuration(2)
