"""Takes what tools print before the text of a kernel record off it.

Contract: knows `dmesg` (`[  12.345678]`), `dmesg -x --time-format iso` (decimal comma) and
journald's short and ISO forms; a line without any of them is returned as it is. Never raises.
"""

from __future__ import annotations

import datetime as dt
import re

_FACILITY = re.compile(
    r"^(?:kern|user|daemon|syslog)\s*:(?:emerg|alert|crit|err|warn|notice|info|debug)\s*:\s+"
)
_UPTIME = re.compile(r"^\[\s*(\d+\.\d+)\]\s?")
_ISO = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[.,](\d{1,9})(Z|[+-]\d\d:?\d\d)\s")
_JOURNAL = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?(?:\S+ )?kernel: (?:\[\s*\d+\.\d+\] )?"
)


def split_prefix(line: str) -> tuple[float | None, str]:
    """Return `(unix seconds, text)`; the time is None where the line does not say it."""
    text = _FACILITY.sub("", line, count=1)
    seconds = None
    if stamp := _ISO.match(text):
        base = dt.datetime.fromisoformat(stamp[1] + stamp[3].replace("Z", "+00:00"))
        seconds = base.timestamp() + float(f"0.{stamp[2]}")
        text = text[stamp.end() :]
    text = _UPTIME.sub("", text, count=1)
    return seconds, _JOURNAL.sub("", text, count=1)
