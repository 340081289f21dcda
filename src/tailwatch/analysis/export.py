"""A diagnosis as metrics.

Contract: every verdict has its sample, so a rule can ask for one that is not there; what is not
known is absent.

Cost: a dozen samples.
"""

from __future__ import annotations

from typing import get_args

from tailwatch.analysis.diagnosis import Diagnosis, Verdict
from tailwatch.exposition import Snapshot


def export_diagnosis(snapshot: Snapshot, found: Diagnosis, **labels: str) -> None:
    """Add the samples of a diagnosis; `labels` are run and workload."""
    for verdict in get_args(Verdict):
        value = int(verdict == found.verdict)
        snapshot.add("tailwatch_diagnosis_verdict", value, **labels, verdict=verdict)
    snapshot.add("tailwatch_diagnosis_slowdown_ratio", found.slowdown, **labels)
    snapshot.add("tailwatch_diagnosis_confidence_ratio", found.confidence, **labels)
    for worker in found.workers:
        snapshot.add(
            "tailwatch_diagnosis_worker_ratio",
            worker.ratio,
            **labels,
            node=worker.node or "",
            rank=worker.rank,
            phase=worker.phase,
        )
