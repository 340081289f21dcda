"""Whether a plan can be run on this machine: what a plan alone does not know.

Contract: looks at the workload, the targets and the names of the alerts; starts nothing. Raises
UsageError with the field.
"""

from __future__ import annotations

from tailwatch.alerts.rules import rules
from tailwatch.demo.stack import NODES, RANKS_PER_NODE, WORLD_SIZE
from tailwatch.errors import UsageError
from tailwatch.evidence import Experiment, Plan
from tailwatch.trainer.config import TrainerConfig, config_from


def check_here(plan: Plan) -> TrainerConfig:
    """Check a plan against this machine's job and rules; return the trainer's configuration."""
    config = config_from(plan.workload, "workload")
    for nodes in range(1, len(NODES) + 1):
        try:
            config.check(nodes * RANKS_PER_NODE)
        except UsageError as error:
            raise UsageError(str(error), source="workload") from None
    known = {alert.name for alert in rules().alerts}
    for index, experiment in enumerate(plan.experiments):
        place = f"experiments[{index}]"
        _check_target(experiment, f"{place}.target")
        named = [alert.name for alert in experiment.expected]
        for name in [*named, *experiment.allowed, *experiment.forbidden]:
            if name not in known:
                expected = ", ".join(sorted(known))
                raise UsageError(f"no alert is called {name!r}, expected: {expected}", place=place)
    return config


def _check_target(experiment: Experiment, place: str) -> None:
    target = experiment.target
    if target.node is not None and target.node not in NODES:
        expected = ", ".join(NODES)
        raise UsageError(f"is {target.node!r}, expected one of: {expected}", place=f"{place}.node")
    if target.rank is not None and target.rank >= WORLD_SIZE:
        raise UsageError(f"is {target.rank}, expected 0 to {WORLD_SIZE - 1}", place=f"{place}.rank")
    both = target.node is not None and target.rank is not None
    if both and NODES[(target.rank or 0) // RANKS_PER_NODE] != target.node:
        raise UsageError(f"rank {target.rank} is not on {target.node}", place=place)
