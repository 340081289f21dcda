"""What `fabricmanager.log` tells: switch errors and failures of the fabric manager itself.

Contract: `findings` never raises; a line without a time stamp belongs to the record above it. Only
records of level ERROR or worse, and lines without any level, are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tailwatch.agents.lines.finding import Finding, Severity, pci_address

_RECORD = re.compile(r"^\[[A-Z][a-z]{2} +\d+ \d{4} \d\d:\d\d:\d\d\] \[(?P<level>[A-Z]+)\]")
_SWITCH = re.compile(
    r"detected NVSwitch (?P<how>fatal|non-fatal) error (?P<code>\d+)\b"
    r"(?:.*?pci bus id (?P<pci>[0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]))?"
    r"(?:.*?\bport (?P<port>\d+))?"
)
_OWN: tuple[tuple[str, str, Severity, str, str], ...] = (
    (
        "failed to find the GPU handle",
        "multicast_setup_failed",
        "fatal",
        "restart_fabric_manager",
        "A multicast team names a GPU the fabric manager does not know; if a restart of it does "
        "not help, reboot",
    ),
    (
        "detected number of NVSwitches don't match with any supported system topology",
        "topology_mismatch",
        "fatal",
        "replace_node",
        "The fabric manager will not start: NVSwitches are missing",
    ),
)


def records(lines: Iterable[str]) -> Iterator[str]:
    """Return whole records: each with the lines that continue it."""
    record = ""
    for line in lines:
        if _RECORD.match(line) or (record and not _RECORD.match(record)):
            if record:
                yield record
            record = line.rstrip("\n")
        elif line.strip():
            record = f"{record}\n{line.rstrip()}" if record else line.rstrip("\n")
    if record:
        yield record


def findings(lines: Iterable[str]) -> Iterator[Finding]:
    """Return what the records of a log mean, in their order."""
    for record in records(lines):
        level = _RECORD.match(record)
        if level is not None and level["level"] in ("DEBUG", "INFO", "WARNING"):
            continue
        found = _finding(record)
        if found is not None:
            yield found


def _finding(record: str) -> Finding | None:
    switch = _SWITCH.search(record)
    if switch is not None:
        fatal = switch["how"] == "fatal"
        return Finding(
            kind="sxid",
            code=switch["code"],
            severity="fatal" if fatal else "warning",
            action="reboot_node" if fatal else "ignore",
            meaning=f"NVSwitch {switch['how']} error",
            device=pci_address(switch["pci"]) if switch["pci"] else "",
            link=int(switch["port"]) if switch["port"] else None,
        )
    for text, code, severity, action, meaning in _OWN:
        if text in record:
            return Finding(
                kind="fabric_manager", code=code, severity=severity, action=action, meaning=meaning
            )
    return None
