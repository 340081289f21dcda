"""Which lines of the kernel log mean something: Xid, SXid and the rules of `rules.toml`.

Contract: never raises, whatever the line; a line that only talks about an Xid is none. What a
truncated line still says is taken, what it does not say is left open.

Cost: about 2 us for a line without any of the words that rules need, 3-20 us for one with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tailwatch.agents.lines.catalogue import UNKNOWN, Entry, Overrides, load_codes, read_toml
from tailwatch.agents.lines.finding import Finding, Kind, Severity, pci_address

_HERE = Path(__file__).parent
_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
# A code ends with a comma, a blank or the line; NVIDIA's own lines come in all three.
_XID = re.compile(
    rf"^NVRM: Xid \((?:PCI:)?(?P<pci>{_BDF})(?: GPU-I:(?P<instance>[0-9a-fA-F]{{1,2}}))?\): "
    r"(?P<code>\d{1,4})(?![\w.])(?P<rest>.*)",
    re.DOTALL,
)
_PROCESS = re.compile(r"pid='?(?P<pid>\d+)'?(?:, name=(?P<name>[^,]*))?")
_NVLINK = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]+)(?:/(?P<also>[A-Z0-9_]+))?\s+(?P<flag>Nonfatal|Fatal)\s+XC\d\s+i\d+"
    r"\s+Link\s+(?P<link>-?\d+)(?:\s+\((?P<register>0x[0-9a-fA-F]{1,8})(?=[\s)]))?"
)
_SXID = re.compile(
    rf"^nvidia-nvswitch\d+: SXid \((?:PCI:)?(?P<pci>{_BDF})\): (?P<code>\d{{1,6}})(?!\w)"
    r"(?:, (?P<flag>Fatal|Non-fatal))?(?:.*?\bLink (?P<link>\d+))?"
)
_DRIVERS = {
    "efa": re.compile(
        r"^(?:efa (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?: (?P<name>[\w-]+))?"
        r"|infiniband (?P<name2>[\w-]+)): "
    ),
    "mlx5_core": re.compile(
        r"^mlx5_core(?: (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))?: "
    ),
}
_LOST_BEGINS = re.compile(r"^NVRM: The NVIDIA GPU (?P<pci>[0-9a-f:]+\.[0-7])\b", re.IGNORECASE)
_LOST_ENDS = "fallen off the bus and is not responding"
_LOST_WITHIN = 6


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule of `rules.toml`."""

    kind: Kind
    code: str
    needs: str
    pattern: str
    severity: Severity
    action: str
    meaning: str
    driver: str = ""
    implies_xid: str = ""

    @property
    def entry(self) -> Entry:
        """What it says about its code."""
        return Entry(meaning=self.meaning, severity=self.severity, action=self.action)

    def with_entry(self, entry: Entry) -> Rule:
        """Return the rule with the severity and action of `entry`."""
        return msgspec.structs.replace(self, severity=entry.severity, action=entry.action)


class _RuleFile(msgspec.Struct, forbid_unknown_fields=True):
    rule: list[Rule]


class _Units(msgspec.Struct):
    units: dict[str, dict[str, str]]
    link_event_hints: dict[str, str]


class KernelLines:
    """Reads lines one after the other and says what each of them means.

    Attributes:
        xids, sxids: the catalogues as they hold on this platform.
        rules: the other rules, likewise.
    """

    def __init__(self, instance_type: str | None = None, extra: Path | None = None) -> None:
        overrides = Overrides(instance_type, extra)
        self.xids: Mapping[str, Entry] = load_codes("xid", overrides)
        self.sxids: Mapping[str, Entry] = load_codes("sxid", overrides)
        self._nvlink = msgspec.convert(read_toml(_HERE / "nvlink.toml"), _Units)
        content = msgspec.convert(read_toml(_HERE / "rules.toml"), _RuleFile)
        self.rules: tuple[Rule, ...] = tuple(
            rule.with_entry(
                self.xids[rule.implies_xid]
                if rule.implies_xid
                else overrides.apply(rule.kind, rule.code, rule.entry)
            )
            for rule in content.rule
        )
        self._patterns = [re.compile(rule.pattern, re.DOTALL) for rule in self.rules]
        # The GPU named by the first line of a message in several records, and how many lines ago.
        self._lost: tuple[str, int] | None = None

    def match(self, line: str) -> Finding | None:
        """Return what a line (without time and level) means, None for nothing."""
        if line.startswith("NVRM: Xid"):
            return self._xid(line)
        if line.startswith("nvidia-nvswitch"):
            return self._sxid(line)
        for rule, pattern in zip(self.rules, self._patterns, strict=True):
            if rule.needs in line and (found := _by_rule(rule, pattern, line)) is not None:
                self._lost = None
                return found
        return self._lost_in_parts(line)

    def xid(self, code: str, device: str) -> Finding:
        """Return the finding for a code that came without a line (from NVML)."""
        entry = self.xids.get(code, UNKNOWN)
        return Finding(
            kind="xid",
            code=code,
            severity=entry.severity,
            action=entry.action,
            meaning=entry.meaning,
            device=device,
        )

    def _xid(self, line: str) -> Finding | None:
        found = _XID.match(line)
        if found is None:
            return None
        code, rest = str(int(found["code"])), found["rest"]
        finding = self.xid(code, pci_address(found["pci"]))
        process = _PROCESS.search(rest)
        finding = msgspec.structs.replace(
            finding,
            gpu_instance=int(found["instance"], 16) if found["instance"] else None,
            pid=int(process["pid"]) if process else None,
            process=(process["name"] or "")[:64] if process else "",
        )
        entry = self.xids.get(code, UNKNOWN)
        return self._nvlink5(finding, rest) if entry.by_line else finding

    def _nvlink5(self, finding: Finding, rest: str) -> Finding:
        found = _NVLINK.search(rest)
        if found is None:
            return finding
        flag = found["flag"].lower()
        known = self._nvlink.units.get(found["unit"], {})
        subcode = None
        hint = ""
        if found["register"]:
            subcode = int(found["register"], 16) >> 20 & 0x3F
            if "NETIR_LINK_EVT" in (found["unit"], found["also"]):
                hint = self._nvlink.link_event_hints.get(str(subcode), "")
        link = int(found["link"])
        return msgspec.structs.replace(
            finding,
            unit=found["unit"],
            severity="fatal" if flag == "fatal" else "warning",
            action=known.get(flag, "contact_support" if flag == "fatal" else "ignore"),
            hint=hint,
            link=link if link >= 0 else None,
            subcode=subcode,
        )

    def _sxid(self, line: str) -> Finding | None:
        found = _SXID.match(line)
        if found is None:
            return None
        code = found["code"]
        entry = self.sxids.get(code, UNKNOWN)
        severity = entry.severity
        if found["flag"] == "Fatal":
            severity = "fatal"
        elif found["flag"] and severity == "fatal":
            severity = "warning"
        return Finding(
            kind="sxid",
            code=code,
            severity=severity,
            action=entry.action,
            meaning=entry.meaning,
            device=pci_address(found["pci"]),
            link=int(found["link"]) if found["link"] else None,
        )

    def _lost_in_parts(self, line: str) -> Finding | None:
        """Put together the loss of a GPU that the driver tells in several records."""
        if begins := _LOST_BEGINS.match(line):
            self._lost = (pci_address(begins["pci"]), 0)
        elif self._lost is not None:
            device, ago = self._lost
            self._lost = (device, ago + 1) if ago < _LOST_WITHIN else None
            if line.startswith("NVRM:") and _LOST_ENDS in line:
                self._lost = None
                rule = next(r for r in self.rules if r.code == "fallen_off_bus")
                return _finding(rule, device=device)
        return None


def _by_rule(rule: Rule, pattern: re.Pattern[str], line: str) -> Finding | None:
    groups: dict[str, str | None] = {}
    if rule.driver:
        begins = _DRIVERS[rule.driver].match(line)
        if begins is None:
            return None
        groups = begins.groupdict()
    found = pattern.search(line)
    if found is None:
        return None
    groups |= found.groupdict()
    name = groups.get("name") or groups.get("name2")
    pci = groups.get("pci")
    pid = groups.get("pid")
    return _finding(
        rule,
        device=name or (pci_address(pci) if pci else ""),
        pid=int(pid) if pid else None,
        process=(groups.get("process") or "")[:64],
    )


def _finding(rule: Rule, *, device: str, pid: int | None = None, process: str = "") -> Finding:
    return Finding(
        kind=rule.kind,
        code=rule.code,
        severity=rule.severity,
        action=rule.action,
        meaning=rule.meaning,
        device=device,
        pid=pid,
        process=process,
        implies_xid=rule.implies_xid,
    )


def with_names(finding: Finding, names: Mapping[str, str]) -> Finding:
    """Return a finding of a NIC under the name of its RDMA device.

    Args:
        names: RDMA device by PCI address, of the devices of that driver only.
    """
    if finding.kind not in ("efa", "mlx5") or finding.device not in names:
        return finding
    return msgspec.structs.replace(finding, device=names[finding.device])
