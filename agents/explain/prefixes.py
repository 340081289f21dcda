"""Takes off what collectors, launchers and loggers put before the text of a line.

Contract: `split` never raises. It knows ANSI colours, JSON lines, the forms of kubectl, CRI,
docker, journald, dmesg and /dev/kmsg, srun, mpirun, Ray and torchrun, Python's logging and glog; a
line without any of them comes back as it is. What prefixes say about rank and host is kept.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from tailwatch.agents.lines.messages import LONGEST

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\ufeff\x00-\x08\x0b-\x1a\x1c-\x1f]")
_TEXT_KEYS = ("log", "message", "msg", "MESSAGE", "textPayload", "body", "event")
_PREFIXES = tuple(
    re.compile(form)
    for form in (
        r"\[pod/(?P<pod>[\w.-]+)/[\w.-]+\] ",
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? ",
        r"std(?:out|err) [FP] ",
        r"\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?:? +",
        r"(?:kern|user|daemon|syslog)\s*:(?:emerg|alert|crit|err|warn|notice|info|debug)\s*: +",
        r"<\d{1,3}>",
        r"\d{1,3},\d+,\d+,[-c+](?:,[^;]*)?;",
        r"\[\s*\d+\.\d+\](?:\[ *[TC]\d+\])? ?",
        r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host>[\w.-]+) (?=\S+: )",
        r"(?P<host>[\w.-]+) kernel: ",
        r"kernel: ",
        r"(?P<unit>systemd|kubelet|containerd|nv-fabricmanager|slurmstepd|slurmd)\[\d+\]: ",
        r"\[(?:rank|default|trainer|worker)_?(?P<rank>\d+)\]: ?",
        r"\[\d+,(?P<rank>\d+)\]<std(?:out|err|diag)>: ?",
        r"\((?:\w+ )?pid=\d+(?:, ip=(?P<host>[\d.]+))?\) ",
        r"(?P<rank>\d{1,5}): (?=\S)",
        r"(?P<host>[\w-]+(?:\.[\w-]+)*) +\| ",
        r"(?!mlx|nv|efa|ena|irdma|i40|ib)(?P<host>[a-z][\w-]*\d[\w.-]*): "
        r"(?=\[(?:rank|default|PG|[IWEF]\d)|NVRM|Trace)",
        r"- ?(?:\w[\w.]* - )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - ",
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::[\w.]*:| +- | +\|)\s*",
    )
)
_LOGGER = re.compile(
    r"\[?[IWEF](?:\d{4} \d\d:\d\d:\d\d\.\d+)? ?(?:\d+ )?"
    r"(?P<logger>[\w./-]+\.(?:cpp|cc|py|h|hpp|cu):\d+)\] ?"
)
_PYTHON_LOGGER = re.compile(
    r"(?:\[?(?:INFO|WARNING|ERROR)\]? +)?(?P<logger>torch\.distributed(?:\.[a-z_]\w*)+): "
)
_NCCL = re.compile(
    r"^(?P<host>[\w.-]+) ?:(?P<pid>\d+):(?P<tid>\d+) \[(?P<device>\d+)\] (?=.{0,200}?NCCL )"
)


class Line(NamedTuple):
    """A line without its prefixes; `logger` is the file that a glog prefix names."""

    text: str
    rank: int | None = None
    host: str = ""
    logger: str = ""
    indented: bool = False


def split(raw: str) -> Line:
    """Return the text of a line and what its prefixes say."""
    text = _ANSI.sub("", raw).rstrip()
    rank: int | None = None
    host = ""
    logger = ""
    if text.lstrip().startswith("{"):
        text, rank, host = _from_json(text)
    for _ in range(12):
        rest = text.lstrip()
        if found := _LOGGER.match(rest) or _PYTHON_LOGGER.match(rest):
            logger = found["logger"]
            text = rest[found.end() :]
            continue
        found = next((m for form in _PREFIXES if (m := form.match(text))), None)
        if found is None:
            break
        groups = found.groupdict()
        if groups.get("rank"):
            rank = int(groups["rank"])
        host = groups.get("host") or groups.get("pod") or host
        text = text[found.end() :]
    if nccl := _NCCL.match(text):
        host = nccl["host"]
    return Line(text.strip()[:LONGEST], rank, host, logger, text[:1] in (" ", "\t"))


def _from_json(text: str) -> tuple[str, int | None, str]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return text, None, ""
    if not isinstance(content, dict):
        return text, None, ""
    said = next((content[key] for key in _TEXT_KEYS if isinstance(content.get(key), str)), None)
    if said is None:
        return text, None, ""
    rank = content.get("rank")
    where = content.get("kubernetes")
    places = [content, where if isinstance(where, dict) else {}]
    host = next(
        (
            place[key]
            for place in places
            for key in ("node", "host", "hostname", "pod_name", "pod", "_HOSTNAME")
            if isinstance(place.get(key), str)
        ),
        "",
    )
    return said.rstrip(), rank if isinstance(rank, int) else None, host
