"""torchrun's failure block: which rank ended first, how, and which it only took along.

Contract: reads line by line and never raises; a field that stands alone, as in a pasted fragment,
makes a failure of its own. An exit status of 128+N is read as signal N, as shells and Kubernetes
write it.
"""

from __future__ import annotations

import re
import signal

import msgspec

from tailwatch.agents.lines.messages import Message

_FIELD = re.compile(
    r"(?P<name>time|host|rank|exitcode|error_file|traceback)\s+: ?(?P<value>.*?)(?=\s+/ \w+\s*:|$)"
    r"|(?P<name2>error_file): ?(?P<value2>\S+)"
)
_ENTRY = re.compile(r"^\[(?P<number>\d+)\]:$")
_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_EXIT = re.compile(r"(?P<code>-?\d+)(?: \(pid: (?P<pid>\d+)\))?")
_AGENT = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\) (?:local_rank|rank): (?P<local>\d+)"
    r" \(pid: (?P<pid>\d+)\)"
)
_SIGNAL = re.compile(r"Signal (?P<signal>\d+) \(\w+\) received by PID (?P<pid>\d+)")
_BORDER = re.compile(
    r"^(?:[=-]{10,}|Failures:|<NO_OTHER_FAILURES>|Root Cause \(first observed failure\):"
    r"|\S+ FAILED)$"
)


_MOST = 20_000


class Failure(msgspec.Struct):
    """One process that the launcher found ended."""

    lines: list[str]
    first: bool = False
    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    code: int | None = None
    pid: int | None = None
    traceback: str = ""


class FailureBlock:
    """Collects failures from lines.

    Attributes:
        failures: what was found so far.
        borders: lines of blocks that belong to no failure.
    """

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.borders: list[str] = []
        self._open: Failure | None = None
        self._root = False
        self._in_traceback = False

    def take(self, text: str, raw: str) -> bool:
        """Return whether the line belonged to a block."""
        if _BORDER.match(text):
            if text.startswith("Root Cause"):
                self._root = True
            elif text in ("Failures:", "<NO_OTHER_FAILURES>"):
                self._root = False
            self._open = None
            if len(self.borders) < _MOST:
                self.borders.append(raw)
            return True
        if agent := _AGENT.search(text):
            self._from_agent(agent, raw)
            return True
        if _ENTRY.match(text):
            self._open = Failure([raw], first=self._root)
            self._append(self._open)
            self._in_traceback = False
            return True
        fields = [
            (found["name"] or found["name2"], found["value"] or found["value2"] or "")
            for found in _FIELD.finditer(text)
        ]
        if fields:
            self._fields(fields, raw)
            return True
        if self._open is not None and self._in_traceback:
            self._open.traceback = f"{self._open.traceback}\n{text}"[:4096]
            if len(self._open.lines) < 50:
                self._open.lines.append(raw)
            return True
        return False

    def _fields(self, fields: list[tuple[str, str]], raw: str) -> None:
        if self._open is None or (fields[0][0] == "exitcode" and self._open.code is not None):
            self._open = Failure([], first=True)
            self._append(self._open)
        failure = self._open
        failure.lines.append(raw)
        for name, value in fields:
            self._in_traceback = name == "traceback"
            if name == "host":
                failure.host = value.strip()
            elif name == "rank" and (found := _RANK.search(value)):
                failure.rank, failure.local_rank = int(found["rank"]), int(found["local"])
            elif name == "exitcode" and (found := _EXIT.search(value)):
                failure.code = int(found["code"])
                failure.pid = int(found["pid"]) if found["pid"] else None
            elif name == "traceback":
                failure.traceback = value
                if failure.code is None and (found := _SIGNAL.match(value)):
                    failure.code, failure.pid = -int(found["signal"]), int(found["pid"])

    def _append(self, failure: Failure) -> None:
        if len(self.failures) < _MOST:
            self.failures.append(failure)

    def _from_agent(self, found: re.Match[str], raw: str) -> None:
        failure = Failure(
            [raw],
            first=True,
            local_rank=int(found["local"]),
            code=int(found["code"]),
            pid=int(found["pid"]),
        )
        self._open = None
        self._append(failure)


def merged(failures: list[Failure]) -> list[Failure]:
    """Return failures with those of one process as one."""
    by_pid: dict[int, Failure] = {}
    found = []
    for failure in failures:
        known = by_pid.get(failure.pid) if failure.pid is not None else None
        if known is None:
            found.append(failure)
            if failure.pid is not None:
                by_pid[failure.pid] = failure
            continue
        known.lines += failure.lines
        known.first = known.first or failure.first
        known.rank = known.rank if known.rank is not None else failure.rank
        known.host = known.host or failure.host
        known.traceback = known.traceback or failure.traceback
    return found


def meaning(failure: Failure) -> Message:
    """Return what the end of a process means by itself."""
    code = failure.code or 0
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if number in _SIGNALS:
        kind, role, depth, action, text = _SIGNALS[number]
    elif number:
        kind, role, depth, action = "crashed", "cause", 63, "look_at_core"
        text = f"Ended by signal {number}"
    elif code == 0:
        kind, role, depth, action = "exited", "echo", 0, "look_above"
        text = "Ended without an error"
    else:
        kind, role, depth, action = "process_failed", "cause", 59, "fix_the_program"
        text = f"Exited with status {code}: an exception of the program, told in the rank's own log"
    name = f" ({signal.Signals(number).name})" if number in list(signal.Signals) else ""
    if role == "cause" and not failure.first:
        role, text = "echo", f"{text}; after another rank had failed"
    return Message(
        kind=kind,
        role="cause" if role == "cause" else "echo",
        severity="info" if kind in ("terminated", "exited") else "fatal",
        action=action,
        meaning=f"{text}{name}",
        depth=depth if role == "cause" else 0,
    )


_SIGNALS: dict[int, tuple[str, str, int, str, str]] = {
    signal.SIGKILL: (
        "killed", "cause", 63, "look_for_oom", "Killed from outside: by the out-of-memory killer "
        "or by somebody; there is no traceback of it",
    ),
    signal.SIGABRT: (
        "aborted", "cause", 30, "look_for_watchdog", "Aborted itself, mostly through the NCCL "
        "watchdog: a hang or a peer's fault, not its own",
    ),
    signal.SIGSEGV: ("crashed", "cause", 63, "look_at_core", "Crashed in native code"),
    signal.SIGBUS: (
        "bus_error", "cause", 74, "enlarge_shm", "Bus error: /dev/shm is too small, or storage "
        "went away under a mapped file",
    ),
    signal.SIGTERM: (
        "terminated", "echo", 0, "ignore", "Ended by the launcher or the kubelet: a victim",
    ),
    signal.SIGINT: ("terminated", "echo", 0, "ignore", "Interrupted from outside: a victim"),
    signal.SIGHUP: ("terminated", "echo", 0, "ignore", "Its terminal went away: a victim"),
}  # fmt: skip
