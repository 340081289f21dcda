"""What to do next, from how it came out: the worst first, each with something to type.

Contract: a pure function of the document and of how the evidence is called; every verdict other
than PASSED and every failed check leads to at least one action.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tailwatch.report.units import seconds
from tailwatch.verdicts import Check, ExperimentOutcome, ReportDocument


@dataclass(frozen=True)
class Action:
    """One thing to do: why, and the commands or files it starts with."""

    title: str
    text: str
    commands: list[str] = field(default_factory=list)


def next_actions(document: ReportDocument, evidence: str) -> list[Action]:
    """Return the actions in the order in which to take them.

    Args:
        document: the judged game day.
        evidence: the evidence directory as the reader would type it.
    """
    actions: list[Action] = []
    left = [o.name for o in document.experiments if o.undo == "failed"]
    if left or document.verdict == "UNDO_FAILED":
        actions.append(
            Action(
                "First: take back what is still in force",
                f"The undo of {', '.join(left) or 'a fault'} was not confirmed at the target. The "
                "undo ledger knows how to take it back; do this before anything else runs here.",
                ["tailwatch gameday doctor"],
            )
        )
    if document.verdict == "ABORTED":
        actions.append(
            Action(
                "See what ended the run, then run it again",
                f"{_sentence(document.reason)} What was judged before that stands; the rest was "
                "not tried.",
                ["tailwatch gameday doctor", "tailwatch demo"],
            )
        )
    if document.verdict == "BASELINE_NOT_MET":
        actions.append(
            Action(
                "Get a baseline first",
                f"{_sentence(document.reason)} Run on a quieter machine or allow a longer baseline "
                "window; until there is one, no number after a fault can be called high.",
                ["tailwatch demo"],
            )
        )
    for outcome in document.experiments:
        actions += _for_experiment(outcome)
    if document.verdict == "PASSED":
        actions += _when_all_held(document)
    actions.append(
        Action(
            "Judge it again yourself",
            "The verdict needs nothing but the evidence directory and comes out the same offline.",
            [f"tailwatch gameday judge {evidence}"],
        )
    )
    return actions


def _for_experiment(outcome: ExperimentOutcome) -> list[Action]:
    again = f"tailwatch demo --only {outcome.name}"
    if outcome.verdict == "PASSED":
        return []
    failed = [check for check in outcome.checks if check.passed is False]
    unknown = [check for check in outcome.checks if check.passed is None]
    if outcome.verdict == "INCONCLUSIVE":
        what = unknown or failed
        return [
            Action(
                f"{outcome.name}: find out why it could not be decided, then repeat it",
                " ".join(_sentence(f"{c.name}: {c.detail}") for c in what)
                or _sentence(outcome.reason),
                [again],
            )
        ]
    actions = [_for_check(outcome, check, again) for check in failed]
    if not actions and outcome.verdict == "DEVIATED":
        actions = [Action(f"{outcome.name}: follow up", _sentence(outcome.reason), [again])]
    return actions


# What a failed check is about, by how its name begins or ends: title, and where to look.
_LOOK: list[tuple[str, str, str]] = [
    (
        r"alert .*: delivered",
        "the page did not come, or came late",
        "Follow the alert from its rule to the receiver: expression, hold time, route, delivery.",
    ),
    (
        r"alert .*: resolved",
        "the page did not go away",
        "See whether the rule still held after the undo, or only its resolution was not sent.",
    ),
    (
        r"alerts: none",
        "a page came that should not",
        "Either the rule is too eager, or it shows an effect that the hypothesis forgot; then it "
        "belongs on a list of the plan.",
    ),
    (
        r"undo",
        "the undo did not take",
        "Look at the last entries of the undo ledger and at the target.",
    ),
    (
        r"recovery|baseline",
        "the job did not keep to its baseline",
        "Compare the curves above and the rows of the heat map: one rank, or all of them?",
    ),
    (
        r"reaction",
        "the job did not react as it should",
        "Compare the step it resumed from with the newest verified checkpoint, and read the "
        "launchers' logs around the restart.",
    ),
]


def _for_check(outcome: ExperimentOutcome, check: Check, again: str) -> Action:
    """The way from a failed check to where its cause can be looked for."""
    about = f"{check.name} {check.detail}"
    alerts = dict.fromkeys(a.name for a in outcome.alerts if a.name in about)
    runbooks = [f"alerts/runbooks/{alert}.md" for alert in alerts]
    title, where = check.name, "Look at what the runner did and saw, below the experiment."
    for pattern, its_title, its_place in _LOOK:
        if re.match(pattern, check.name):
            title, where = its_title, its_place
            break
    return Action(
        f"{outcome.name}: {title}", f"{_sentence(check.detail)} {where}", [*runbooks, again]
    )


def _when_all_held(document: ReportDocument) -> list[Action]:
    """A pass is an invitation to tighten: name the slowest alert and the dearest restart."""
    actions = []
    noticed = [
        (o.detection_seconds, o.name)
        for o in document.experiments
        if o.detection_seconds is not None
    ]
    if len(noticed) > 1:
        worst, name = max(noticed)
        actions.append(
            Action(
                "Nothing is broken: tighten the slowest alert",
                f"{name} took {seconds(worst)} from the verified injection to the page, the "
                f"longest of {len(noticed)}. Lower its deadline in the plan so that a slower page "
                "fails the next game day.",
            )
        )
    lost = [
        (o.restart.steps_lost, o.name)
        for o in document.experiments
        if o.restart is not None and o.restart.steps_lost
    ]
    if lost:
        steps, name = max(lost)
        actions.append(
            Action(
                "Decide whether the lost work is cheap enough",
                f"{name} lost {steps} steps, the most of {len(lost)}. Checkpoints more often "
                "would lose fewer and cost more time; the checkpoint phase of a step is in the "
                "step log.",
            )
        )
    actions.append(
        Action(
            "Run it again, on a schedule and after each change",
            "One pass is one sample. Each control must turn the verdict, or the judge is blind.",
            [
                "tailwatch demo",
                "tailwatch demo --control no-injection",
                "tailwatch demo --control rule-removed",
                "tailwatch demo --control undo-blocked",
            ],
        )
    )
    return actions


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else f"{text}."
