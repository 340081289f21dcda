"""The plan of the made-up game day."""

from __future__ import annotations

from collections.abc import Sequence

from tailwatch.evidence import Criteria, ExpectedAlert, Experiment, FaultKind, Plan, Target

ALL_FAULTS: tuple[FaultKind, ...] = (
    "rank-slow",
    "rank-kill",
    "checkpoint-corrupt",
    "node-drain",
)


def plan_for(faults: Sequence[FaultKind], delay_seconds: float) -> Plan:
    """The plan of the made-up game day: one experiment a fault, named after it."""
    place = {"node": "{node}", "rank": "{rank}"}
    every = {
        "rank-slow": Experiment(
            name="rank-slow",
            fault="rank-slow",
            hypothesis="When one rank is slowed, its node and rank are named within 30 s.",
            target=Target(node="node-1", rank=3),
            delay_seconds=delay_seconds,
            expected=[
                ExpectedAlert(name="RankStraggler", labels=place, resolved_seconds=30.0),
                ExpectedAlert(name="StepTimeP99High", resolved_seconds=30.0),
            ],
            forbidden=["JobRestarted", "CheckpointRefused", "WorldShrunk", "JobNoProgress"],
        ),
        "rank-kill": Experiment(
            name="rank-kill",
            fault="rank-kill",
            hypothesis="When one rank dies, all ranks go on from the newest verified checkpoint.",
            target=Target(node="node-0", rank=1),
            expected=[ExpectedAlert(name="JobRestarted", resolved_seconds=30.0)],
            allowed=["StepTimeP99High", "JobNoProgress"],
            forbidden=["RankStraggler", "CheckpointRefused", "WorldShrunk"],
        ),
        "checkpoint-corrupt": Experiment(
            name="checkpoint-corrupt",
            fault="checkpoint-corrupt",
            hypothesis="When the newest checkpoint is corrupt, it is refused and the next is used.",
            target=Target(node="node-1", rank=2),
            expected=[
                ExpectedAlert(name="CheckpointRefused", resolved_seconds=30.0),
                ExpectedAlert(name="JobRestarted", resolved_seconds=30.0),
            ],
            allowed=["StepTimeP99High", "JobNoProgress"],
            forbidden=["RankStraggler", "WorldShrunk"],
        ),
        "node-drain": Experiment(
            name="node-drain",
            fault="node-drain",
            hypothesis="When a node leaves, the job goes on without it and loses no step.",
            target=Target(node="node-1"),
            hold_seconds=10.0,
            expected=[
                ExpectedAlert(name="WorldShrunk", resolved_seconds=30.0),
                ExpectedAlert(name="JobRestarted"),
            ],
            allowed=["StepTimeP99High", "JobNoProgress", "BaselineMissing"],
            forbidden=["RankStraggler", "CheckpointRefused"],
        ),
    }
    return Plan(
        name="demo", criteria=Criteria(), experiments=[every[str(fault)] for fault in faults]
    )
