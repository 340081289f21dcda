"""Rules that are data: each knows its own line, and none takes another's."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.agents.explain.prefixes import split
from tailwatch.agents.lines.messages import FAMILIES, MessageRule, Messages

MESSAGES = Messages()
RULES = [rule for family in FAMILIES for rule in MESSAGES.rules[family]]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_every_rule_knows_its_example(rule: MessageRule) -> None:
    """The line that stands with a rule is found by that rule and by no earlier one."""
    line = split(rule.example)
    found = MESSAGES.match(line.text) or MESSAGES.match(f"{line.logger}]")
    assert found is not None
    assert (found.kind, found.action, found.role) == (rule.kind, rule.action, rule.role)


def test_rules_are_complete() -> None:
    """Every action has a sentence, every cause a depth, every part of a subject a source."""
    for rule in RULES:
        assert rule.action in MESSAGES.actions, rule.kind
        assert (rule.depth > 0) == (rule.role == "cause"), rule.kind
        groups = set(re.compile(rule.pattern).groupindex) | set(re.compile(rule.also).groupindex)
        known = {name.rstrip("0123456789") for name in groups} | {"rank", "host", "on_host"}
        assert set(re.findall(r"\{(\w+)\}", rule.subject)) <= known, rule.kind
        assert all(word == word.lower() for word in rule.needs), rule.kind


@given(st.text(max_size=300))
def test_no_line_breaks_the_rules(text: str) -> None:
    """Any text is known or not known, and never an error."""
    MESSAGES.match(text)
    split(text)


@pytest.mark.parametrize(
    ("raw", "text", "rank", "host"),
    [
        ("[rank3]: RuntimeError: x", "RuntimeError: x", 3, ""),
        ("[default3]:RuntimeError: x", "RuntimeError: x", 3, ""),
        ("[1,7]<stderr>: RuntimeError: x", "RuntimeError: x", 7, ""),
        ("12: RuntimeError: x", "RuntimeError: x", 12, ""),
        ("2025-01-15T10:00:00.123456789Z stderr F RuntimeError: x", "RuntimeError: x", None, ""),
        ("[pod/train-0/main] [rank1]: RuntimeError: x", "RuntimeError: x", 1, "train-0"),
        ("(Worker pid=12, ip=10.0.0.4) RuntimeError: x", "RuntimeError: x", None, "10.0.0.4"),
        ("\x1b[36mnode-1 | \x1b[0mRuntimeError: x", "RuntimeError: x", None, "node-1"),
        ("2025-01-15 10:00:00,123 - trainer - ERROR - RuntimeError: x", None, None, ""),
        ('{"log": "[rank2]: RuntimeError: x\\n", "stream": "stderr"}', "RuntimeError: x", 2, ""),
        ('{"message": "RuntimeError: x", "rank": 4, "host": "n"}', "RuntimeError: x", 4, "n"),
        ("Jan 15 10:00:00 node-a kernel: [12.5] NVRM: x", "NVRM: x", None, "node-a"),
        ("kern  :err   : 2025-01-15T10:00:00,123456+00:00 NVRM: x", "NVRM: x", None, ""),
        ("[Wed Jan 15 10:00:00 2025] NVRM: x", "NVRM: x", None, ""),
        ("6,3973,227996636,-;NVRM: x", "NVRM: x", None, ""),
        ("mlx5_core: INFO: synd 0x8: x", "mlx5_core: INFO: synd 0x8: x", None, ""),
        ("[rank0]:[E1115 16:42:37.784530287 ProcessGroupNCCL.cpp:632] x", "x", 0, ""),
        ("E1201 01:45:36.615000 7 torch/distributed/run.py:874] x", "x", None, ""),
    ],
)
def test_prefixes(raw: str, text: str | None, rank: int | None, host: str) -> None:
    """What tools put before a line is taken off, and what it says is kept."""
    line = split(raw)
    assert line.text == ("RuntimeError: x" if text is None else text)
    assert (line.rank, line.host) == (rank, host)
