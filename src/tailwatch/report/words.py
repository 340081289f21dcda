"""The verdict in plain words: one sentence for the head of the page, one for each gap.

Contract: sentences are made of the document alone and hold no number that is not in it; what is
not known is said to be unknown, with the reason that the judge gave.
"""

from __future__ import annotations

from tailwatch.report.units import count, seconds
from tailwatch.verdicts import SEVERITY, ExperimentOutcome, ReportDocument

LIMITS = [
    "Nothing on this page was measured on a GPU or over EFA: the job trains on CPUs with gloo, and "
    "its two nodes are two groups of processes on one machine.",
    "So the times of detection and recovery hold for this job on this machine. What carries over "
    "is that the loop closes: fault, measurement, alert, restart, recovery.",
    "Each fault was injected once. One pass says that it can work, not how often it does; repeated "
    "game days say that.",
]

METHOD = [
    "A step is one optimizer update of the whole job; its time is that of the slowest rank. One "
    "step is one sample, however many ranks took part.",
    "Steps with and without a rollout stand in one distribution, as they follow each other in the "
    "job, so a curve may have two humps and its p50 may lie between them.",
    "p50, p95 and p99 are order statistics. Their bounds are one-sided at 95 % and rest on n_eff, "
    "the number of independent steps that say as much as these n: slow steps come in bunches. "
    "Below n_eff = 299 a p99 has no upper bound, and none is shown.",
    "Recovery is judged by counting: how many of the first steps after the undo lie above the "
    "baseline's upper bound. A second p99 over so few steps would prove nothing.",
    "The verdict is a pure function of the evidence directory. It can be repeated offline, and it "
    "does not know how the run was set up.",
]

_OF_VERDICT = {
    "PASSED": "passed",
    "DEVIATED": "deviated from the hypothesis",
    "INCONCLUSIVE": "proved nothing either way",
    "BASELINE_NOT_MET": "had no baseline to be compared with",
    "ABORTED": "ended early",
    "UNDO_FAILED": "left a fault behind that could not be undone",
}

_UNTRIED = ("ABORTED", "BASELINE_NOT_MET")


def finding(document: ReportDocument) -> str:
    """Return the outcome in one sentence."""
    outcomes = document.experiments
    if not outcomes:
        return {
            "ABORTED": "The game day ended before any experiment.",
            "BASELINE_NOT_MET": "No experiment was run: the job had no steady baseline.",
        }.get(document.verdict, "No experiment was run, so nothing is proved.")
    passed = [o for o in outcomes if o.verdict == "PASSED"]
    head = f"{len(passed)} of {count(len(outcomes), 'experiment')} passed"
    if len(passed) == len(outcomes):
        return f"{head}: {_what_held(outcomes)}."
    others = []
    untried = [o for o in outcomes if o.injected_at is None and o.verdict in _UNTRIED]
    for verdict in SEVERITY[:-1]:
        names = [o.name for o in outcomes if o.verdict == verdict and o not in untried]
        if names:
            others.append(f"{_and(names)} {_OF_VERDICT[verdict]}")
    if untried:
        were = "was" if len(untried) == 1 else "were"
        others.append(f"{_and([o.name for o in untried])} {were} not tried")
    if not others:
        return f"{head}, but the game day as a whole {_OF_VERDICT[document.verdict]}."
    return f"{head}; {', '.join(others)}."


def _what_held(outcomes: list[ExperimentOutcome]) -> str:
    """What a reader may conclude when everything passed, from the worst of each number."""
    noticed = [o.detection_seconds for o in outcomes if o.detection_seconds is not None]
    recovered = [o.recovery_seconds for o in outcomes if o.recovery_seconds is not None]
    lost = [
        o.restart.steps_lost for o in outcomes if o.restart and o.restart.steps_lost is not None
    ]
    parts = []
    if noticed:
        each = "the fault was" if len(outcomes) == 1 else "every fault was"
        parts.append(f"{each} noticed within {seconds(max(noticed))}")
    if recovered:
        parts.append(f"the job kept to its baseline again within {seconds(max(recovered))}")
    if lost:
        restarts = count(len(lost), "restart")
        parts.append(f"{restarts} cost {count(sum(lost), 'step')} in all")
    return _and(parts) if parts else "each hypothesis held"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def target_words(outcome: ExperimentOutcome) -> str:
    """Return whom the fault hit."""
    rank, node = outcome.target.get("rank"), outcome.target.get("node")
    parts = [] if rank is None else [f"rank {rank}"]
    parts += [] if node is None else [str(node)]
    return " on ".join(parts) if parts else "unknown"


def why_unknown(outcome: ExperimentOutcome, *topics: str) -> str:
    """Return why a number is not known: the check it hangs on, else the verdict's reason."""
    for check in outcome.checks:
        if check.passed is not True and any(topic in check.name.lower() for topic in topics):
            return check.detail
    return outcome.reason
