"""What `fabricmanager.log` tells: switch errors and failures of the fabric manager itself.

Contract: `FabricManagerLines` takes the lines of one log in their order and never raises. A line
without a time stamp belongs to the record above it. Only records of level ERROR or worse, and lines
of no record, are looked at.

Cost: about 1 us for a line of level INFO, 5 us for one of level ERROR.
"""

from __future__ import annotations

import re

from tailwatch.agents.lines.finding import Finding, Severity, pci_address

RECORD = re.compile(r"^\[[A-Z][a-z]{2} +\d+ \d{4} \d\d:\d\d:\d\d\] \[(?P<level>[A-Z]+)\]")
"""How a record begins; a line without it belongs to the record above."""
_HARMLESS = frozenset({"DEBUG", "INFO", "WARNING"})
_SWITCH = re.compile(
    r"detected NVSwitch (?P<how>fatal|non-fatal) error (?P<code>\d+)\b"
    r"(?:.*?pci bus id (?P<pci>[0-9a-fA-F]{8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]))?"
    r"(?:.*?\bport (?P<port>\d+))?"
)
_OWN: tuple[tuple[str, Finding], ...] = tuple(
    (
        text,
        Finding(kind="fabric_manager", code=code, severity="fatal", action=action, meaning=meaning),
    )
    for text, code, action, meaning in (
        (
            "failed to find the GPU handle",
            "multicast_setup_failed",
            "restart_fabric_manager",
            "A multicast team names a GPU the fabric manager does not know; if a restart of it "
            "does not help, reboot",
        ),
        (
            "detected number of NVSwitches don't match with any supported system topology",
            "topology_mismatch",
            "replace_node",
            "The fabric manager will not start: NVSwitches are missing",
        ),
    )
)
OWN_FINDINGS: tuple[Finding, ...] = tuple(finding for _, finding in _OWN)
"""What can go wrong with the fabric manager itself."""


class FabricManagerLines:
    """Reads the lines of one log one after the other and says what each of them means."""

    def __init__(self) -> None:
        self._harmless = False

    def match(self, line: str) -> Finding | None:
        """Return what a line means, None for nothing."""
        record = RECORD.match(line)
        if record is not None:
            self._harmless = record["level"] in _HARMLESS
        return None if self._harmless else _finding(line)


def _finding(line: str) -> Finding | None:
    switch = _SWITCH.search(line)
    if switch is not None:
        fatal = switch["how"] == "fatal"
        severity: Severity = "fatal" if fatal else "warning"
        return Finding(
            kind="sxid",
            code=switch["code"],
            severity=severity,
            action="reboot_node" if fatal else "ignore",
            meaning=f"NVSwitch {switch['how']} error",
            device=pci_address(switch["pci"]) if switch["pci"] else "",
            link=int(switch["port"]) if switch["port"] else None,
        )
    return next((finding for text, finding in _OWN if text in line), None)
