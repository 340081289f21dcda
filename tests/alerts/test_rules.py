"""The alert rules in promtool: each fires when it should only, and a weaker rule is noticed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from tailwatch.alerts.alertmanager import alertmanager_config
from tailwatch.alerts.build import FILE_NAME, build, to_yaml
from tailwatch.alerts.rules import RUNBOOKS, Alert, Clause, RuleSet, duration, rules
from tailwatch.errors import UsageError
from tailwatch.tools import find_tool

CASES = Path(__file__).with_name("cases")
ROOT = Path(__file__).parents[2]
ALERTS = {alert.name: alert for alert in rules().alerts}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the pinned promtool."""
    return subprocess.run(
        [find_tool("promtool", pinned=True), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_cases(directory: Path, alert: str) -> subprocess.CompletedProcess[str]:
    """Run the cases of an alert on the rules in `directory`."""
    shutil.copy(CASES / f"{alert}.yaml", directory)
    return promtool("test", "rules", directory / f"{alert}.yaml")


def weaker(alert: Alert) -> list[tuple[str, Alert]]:
    """Return the alert without each of its thresholds, and without each of its durations."""
    found = []
    for number, clause in enumerate(alert.clauses):
        if not clause.comparison:
            continue
        others = alert.clauses[:number] + alert.clauses[number + 1 :]
        left = others or (Clause(clause.expr, ""),)
        found.append((f"clause {number + 1}", msgspec.structs.replace(alert, clauses=left)))
    for field in ("hold", "keep"):
        if getattr(alert, field):
            found.append((field, msgspec.structs.replace(alert, **{field: 0.0})))
    return found


WEAKER = [(name, what, alert) for name in ALERTS for what, alert in weaker(ALERTS[name])]


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_fires_when_it_should(tmp_path: Path, alert: str) -> None:
    """Not yet, fires, resolves, and stays silent over restarts, gaps and counters that are born."""
    build(tmp_path)
    done = run_cases(tmp_path, alert)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "what", "mutant"), WEAKER, ids=[f"{name}-{what}" for name, what, _ in WEAKER]
)
def test_weaker_rule_is_noticed(tmp_path: Path, name: str, what: str, mutant: Alert) -> None:
    """Without any one of its thresholds or durations an alert fails its own cases."""
    whole = rules()
    changed = tuple(mutant if alert.name == name else alert for alert in whole.alerts)
    text = to_yaml(RuleSet(whole.interval, whole.recordings, changed))
    (tmp_path / FILE_NAME).write_text(text)
    checked = promtool("check", "rules", tmp_path / FILE_NAME)
    assert checked.returncode == 0, checked.stderr
    done = run_cases(tmp_path, name)
    assert done.returncode != 0
    assert name in done.stdout + done.stderr


def test_every_threshold_is_weakened_once() -> None:
    """Every alert but the one that always fires has at least one weaker form that is tried."""
    assert {name for name, _, _ in WEAKER} == set(ALERTS) - {"Watchdog"}


@pytest.mark.parametrize("interval", [0.5, 1.0, 15.0, 30.0])
def test_rules_are_valid_at_any_interval(tmp_path: Path, interval: float) -> None:
    """promtool accepts the rules, duplicates included, and windows are at least 5 intervals."""
    path = build(tmp_path, run_interval=interval)
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", path)
    assert checked.returncode == 0, checked.stderr
    windows = {w for rule in _rules(path) for w in re.findall(r"\[(\w+)\]", rule["expr"])}
    assert windows == {duration(n * interval) for n in (5, 10, 12, 15)}


def _rules(path: Path) -> list[dict[str, str]]:
    (group,) = yaml.safe_load(path.read_text())["groups"]
    found: list[dict[str, str]] = group["rules"]
    return found


def test_every_alert_is_complete() -> None:
    """Severity, team, a summary without values, and a short runbook that exists."""
    for name, alert in ALERTS.items():
        assert alert.severity in {"critical", "warning", "info", "none"}, name
        assert alert.team in {"training", "platform"}, name
        assert "{{" not in alert.summary, name
        page = (ROOT / alert.runbook).read_text()
        assert page.startswith(f"# {name}\n"), name
        headings = re.findall(r"^## (\w+)$", page, re.MULTILINE)
        assert headings == ["Meaning", "Impact", "Diagnosis", "Mitigation"], name
        assert 15 <= page.count("\n") <= 36, name
    pages = {path.stem for path in (ROOT / RUNBOOKS).glob("*.md")}
    assert pages == set(ALERTS)


def test_alerts_that_are_left_out(tmp_path: Path) -> None:
    """`omit` leaves an alert out and all others in; a name that does not exist is refused."""
    path = build(tmp_path / "new", omit=frozenset({"RankStraggler"}))
    names = [rule["alert"] for rule in _rules(path) if "alert" in rule]
    assert names == [name for name in ALERTS if name != "RankStraggler"]
    with pytest.raises(UsageError, match="no alert Nonsense"):
        build(tmp_path, omit=frozenset({"Nonsense"}))
    with pytest.raises(UsageError, match="cannot be written"):
        build(Path("/proc/nowhere"))


def test_rules_use_no_fragile_forms() -> None:
    """No topk, no rate of a sum, no value in a label, no counter without rate or increase."""
    whole = rules()
    for expression in [r.expr for r in whole.recordings] + [a.expr for a in whole.alerts]:
        assert "topk" not in expression
        assert not re.search(r"(rate|increase)\(\s*(sum|max)", expression)
        for name in re.findall(r"tailwatch_\w+_total\b(?!\w)(.?)", expression):
            assert name == "["


def test_routes_wait_as_long_as_the_rules_are_apart() -> None:
    """What a group waits before it is sent follows the interval; the webhook is the one given."""
    config = alertmanager_config("http://h:1/x", interval=15)
    assert config["route"]["group_wait"] == "7500ms"
    assert config["route"]["group_interval"] == "15s"
    assert config["receivers"][1]["webhook_configs"][0]["url"] == "http://h:1/x"


def test_alertmanager_accepts_its_configuration(tmp_path: Path) -> None:
    """amtool accepts the configuration, and routes pages to the webhook and Watchdog nowhere."""
    path = tmp_path / "alertmanager.yaml"
    path.write_bytes(msgspec.json.encode(alertmanager_config("http://127.0.0.1:9/x")))
    amtool = find_tool("amtool", pinned=True)
    subprocess.run([amtool, "check-config", path], check=True, capture_output=True, timeout=60)
    for receiver, severity in (("webhook", "warning"), ("none", "none")):
        subprocess.run(
            [
                *(amtool, "config", "routes", "test", f"--config.file={path}"),
                *(f"--verify.receivers={receiver}", f"severity={severity}"),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
