"""What the pager delivered, held against the plan's three lists.

Contract: only what the webhook receiver got counts, at the times at which Prometheus says that it
began and ended. What is expected must begin after the injection. What is forbidden, in none of the
lists, or has an expected name and other labels, must not fire at any moment between the end of what
came before (an earlier experiment, the baseline) and the end of the experiment, whenever it began.

Two things are left over from before and held against nobody, if they end within the experiment: an
alert that the experiment in which it began had listed, and `BaselineMissing` from the time without
a baseline. `Watchdog` always fires and says nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tailwatch.chaos.judge.case import Case
from tailwatch.evidence import ExpectedAlert
from tailwatch.notices import AlertNotice
from tailwatch.verdicts import AlertOutcome, Check, rfc3339

ALWAYS = "Watchdog"
UNTIL_BASELINE = "BaselineMissing"
Role = Literal["expected", "allowed", "forbidden", "unlisted"]
LISTED: tuple[Role, ...] = ("expected", "allowed")


class Episode(msgspec.Struct, kw_only=True):
    """One alert from its first to its last notification.

    `starts_ns` and `ends_ns` are Prometheus' own times, None while it fires; `delivered_ns` and
    `resolved_ns` are when the receiver had the first notification of each kind.
    """

    name: str
    labels: dict[str, str]
    starts_ns: int
    ends_ns: int | None = None
    delivered_ns: int | None = None
    resolved_ns: int | None = None

    def fires_in(self, begin_ns: int, end_ns: int) -> bool:
        """Whether it fires at any moment of a window."""
        return self.starts_ns < end_ns and (self.ends_ns is None or self.ends_ns > begin_ns)


class AlertFindings(msgspec.Struct, kw_only=True):
    """The alerts of an experiment; `detection_seconds` is of the first expected one."""

    outcomes: list[AlertOutcome]
    checks: list[Check]
    detection_seconds: float | None


def episodes(notices: list[AlertNotice]) -> list[Episode]:
    """Return the alerts that the notices tell of, in order of their start."""
    found: dict[tuple[str, frozenset[tuple[str, str]], int], Episode] = {}
    for notice in notices:
        if notice.name == ALWAYS:
            continue
        key = (notice.name, frozenset(notice.labels.items()), notice.starts_at_ns)
        new = Episode(name=notice.name, labels=notice.labels, starts_ns=notice.starts_at_ns)
        episode = found.setdefault(key, new)
        if notice.status == "firing" and episode.delivered_ns is None:
            episode.delivered_ns = notice.received_ns
        if notice.status == "resolved" and episode.resolved_ns is None:
            episode.resolved_ns, episode.ends_ns = notice.received_ns, notice.ends_at_ns
    ordered = sorted(found.values(), key=lambda e: (e.starts_ns, e.name, sorted(e.labels.items())))
    following: dict[tuple[str, frozenset[tuple[str, str]]], Episode] = {}
    for episode in reversed(ordered):
        series = (episode.name, frozenset(episode.labels.items()))
        if episode.ends_ns is None and series in following:
            # It began anew before its end was sent, and then nobody sends that any more.
            episode.ends_ns = following[series].starts_ns
        following[series] = episode
    return ordered


def judge_alerts(case: Case) -> AlertFindings:
    """Return every alert of the experiment and the checks they answer."""
    experiment = case.experiment
    every = episodes(case.gathered.notices)
    begin = case.at("injecting") or case.injected_ns
    mine = [e for e in every if begin is not None and begin <= e.starts_ns < case.end_ns]
    roles = [(e, _role(case, e)) for e in every if e in mine or (begin and _disturbs(case, e))]
    outcomes, checks = [], []
    detection = None
    for place, expected in enumerate(experiment.expected):
        labels = resolved_labels(case, expected)
        fitting = [e for e in mine if _fits(e, expected.name, labels)]
        earlier = [
            e
            for e in every
            if _fits(e, expected.name, labels) and begin is not None and e.starts_ns < begin
        ]
        delivered = [e for e in fitting if e.delivered_ns is not None]
        checks.append(_delivered(case, expected, labels, delivered, earlier))
        if expected.resolved_seconds is not None:
            checks.append(_resolved(case, expected, expected.resolved_seconds, fitting))
        if not fitting:
            outcomes.append(_absent(expected.name, labels))
        elif place == 0 and delivered and case.injected_ns is not None:
            detection = ((delivered[0].delivered_ns or 0) - case.injected_ns) / 1e9
    outcomes += [_outcome(episode, role) for episode, role in roles]
    checks.append(_none_of(roles, "forbidden", "alerts: none forbidden", "forbidden"))
    checks.append(_none_of(roles, "unlisted", "alerts: none unforeseen", "foreseen by nobody"))
    return AlertFindings(outcomes=outcomes, checks=checks, detection_seconds=detection)


def resolved_labels(case: Case, expected: ExpectedAlert) -> dict[str, str]:
    """Return the expected labels with `{node}` and `{rank}` of the resolved target."""
    return {
        name: value.replace("{node}", str(case.node)).replace("{rank}", str(case.rank))
        for name, value in expected.labels.items()
    }


def _window_begin(case: Case) -> int:
    """Return the moment from which on no alert may fire that the experiment does not list."""
    if case.earlier or case.baseline is None:
        return case.begin_ns
    return max(case.begin_ns, case.baseline.noted_ns)


def _disturbs(case: Case, episode: Episode) -> bool:
    """Whether an alert fires in the experiment's time, is not listed and no mere remainder."""
    begin = _window_begin(case)
    if not episode.fires_in(begin, case.end_ns) or _role(case, episode) in LISTED:
        return False
    if episode.starts_ns >= begin or episode.ends_ns is None or episode.ends_ns >= case.end_ns:
        return True
    began_in = [other for other in case.earlier if _window_begin(other) <= episode.starts_ns]
    if not began_in:
        return episode.name != UNTIL_BASELINE
    return _role(began_in[-1], episode) not in LISTED


def _fits(episode: Episode, name: str, labels: dict[str, str]) -> bool:
    return episode.name == name and labels.items() <= episode.labels.items()


def _role(case: Case, episode: Episode) -> Role:
    experiment = case.experiment
    if any(_fits(episode, e.name, resolved_labels(case, e)) for e in experiment.expected):
        return "expected"
    if episode.name in experiment.forbidden:
        return "forbidden"
    return "allowed" if episode.name in experiment.allowed else "unlisted"


def _delivered(
    case: Case,
    expected: ExpectedAlert,
    labels: dict[str, str],
    delivered: list[Episode],
    earlier: list[Episode],
) -> Check:
    name = f"alert {expected.name}: delivered"
    where = "".join(f" {key}={value}" for key, value in sorted(labels.items()))
    if case.injected_ns is None:
        return Check(name=name, passed=None, detail="Nothing was injected.")
    if not delivered:
        still = [e for e in earlier if e.resolved_ns is None or e.resolved_ns >= case.injected_ns]
        if still:
            began = rfc3339(still[-1].starts_ns)
            detail = f"{expected.name}{where} was firing already, since {began}."
            return Check(name=name, passed=None, detail=detail)
        detail = f"{expected.name}{where} was not delivered."
        return Check(name=name, passed=False, detail=detail)
    seconds = ((delivered[0].delivered_ns or 0) - case.injected_ns) / 1e9
    detail = (
        f"{expected.name}{where} was delivered {seconds:.1f} s after the injection, the deadline "
        f"is {expected.deadline_seconds:g} s."
    )
    return Check(name=name, passed=seconds <= expected.deadline_seconds, detail=detail)


def _resolved(case: Case, expected: ExpectedAlert, limit: float, fitting: list[Episode]) -> Check:
    name = f"alert {expected.name}: resolved"
    undone = case.at("undone")
    if undone is None or not fitting:
        detail = "It never fired." if undone is not None else "The timeline has no undone."
        return Check(name=name, passed=None, detail=detail)
    deadline = undone + int(limit * 1e9)
    if any(episode.ends_ns is None for episode in fitting):
        over = case.gathered.timeline[-1].time_ns >= deadline
        detail = f"{expected.name} was not resolved within {limit:g} s of the undo."
        if not over:
            detail = f"The evidence ends before the {limit:g} s for its resolution are over."
        return Check(name=name, passed=False if over else None, detail=detail)
    ended = (max(episode.ends_ns or 0 for episode in fitting) - undone) / 1e9
    if ended < 0:
        # It gave up on a fault that was still there.
        detail = f"{expected.name} stopped firing {-ended:.1f} s before the undo."
        return Check(name=name, passed=False, detail=detail)
    told = max(episode.resolved_ns or episode.ends_ns or 0 for episode in fitting)
    seconds = (told - undone) / 1e9
    detail = (
        f"{expected.name} was resolved {seconds:.1f} s after the undo, the deadline is {limit:g} s "
        "after it."
    )
    return Check(name=name, passed=seconds <= limit, detail=detail)


def _none_of(roles: list[tuple[Episode, Role]], role: Role, name: str, word: str) -> Check:
    found = []
    for episode, its_role in roles:
        if its_role == role:
            place = [f"{k}={episode.labels[k]}" for k in ("node", "rank") if k in episode.labels]
            found.append(" ".join([episode.name, *place]))
    if found:
        detail = f"Fired although {word}: {', '.join(found)}."
        return Check(name=name, passed=False, detail=detail)
    return Check(name=name, passed=True, detail=f"No alert fired that was {word}.")


def _absent(name: str, labels: dict[str, str]) -> AlertOutcome:
    return AlertOutcome(
        name=name,
        labels=labels,
        role="expected",
        fired_at=None,
        delivered_at=None,
        resolved_at=None,
    )


def _outcome(episode: Episode, role: Role) -> AlertOutcome:
    return AlertOutcome(
        name=episode.name,
        labels=episode.labels,
        role=role,
        fired_at=rfc3339(episode.starts_ns),
        delivered_at=None if episode.delivered_ns is None else rfc3339(episode.delivered_ns),
        resolved_at=None if episode.resolved_ns is None else rfc3339(episode.resolved_ns),
    )
