"""What lines of libfabric and the NCCL OFI plugin mean, and which host they point at.

Contract: never raises. A warning is a fault only by its provider error number, which stands in the
last parentheses and goes before the text and `err`: both are often of another error. Warnings
without one, and what is flushed while a queue pair is torn down, are no faults.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

_LINE = re.compile(r"^libfabric:(?P<pid>\d+):(?P<time>\d+):(?P<log>[^:]*):(?P<provider>[^:]*):")
_ERROR = re.compile(
    r"err: (?P<err>\d+), message: (?P<message>.*?)\s*(?:My EFA addr: (?P<mine>\S+).*?"
    r"My host id: (?P<my_host>\S+))?(?:\s*Peer EFA addr: (?P<peer>\S+))?"
    r"(?:\s*Peer host id: (?P<peer_host>\S+))?\s*\((?P<provider_error>\d+)\)\s*$"
)
_PLUGIN = re.compile(r"NET/OFI Request completed with error\. RC: (?P<rc>\d+)\.")
_FLUSHED = 1
# Provider error numbers as in libfabric's prov/efa/src/efa_errno.h.
_CAUSES = {
    2: "local_queue_pair",
    3: "unsupported_operation",
    4: "local_address_handle",
    5: "local_memory_registration",
    6: "local_length",
    7: "remote_memory_registration",
    8: "reset_by_peer",
    9: "remote_queue_pair_gone",
    10: "remote_not_ready",
    11: "remote_length",
    12: "remote_status",
    13: "remote_unresponsive",
    14: "remote_address_handle",
    15: "remote_unreachable",
    18: "remote_feature_mismatch",
    4124: "remote_unresponsive",
    4126: "remote_unresponsive",
}


class FabricError(NamedTuple):
    """A completion error; `cause` is `unclassified` where no provider error number stands.

    `time` is in unix seconds; hosts and addresses are empty where the line does not know them.
    """

    pid: int | None
    time: int | None
    err: int | None
    provider_error: int | None
    cause: str
    host: str
    peer_host: str
    peer_address: str


def parse(line: str) -> FabricError | None:
    """Return the error a line tells of; None for a line that is no fault.

    A plugin's line tells no more than that something went wrong; what, the line of libfabric of
    the same process and second says.
    """
    head = _LINE.match(line)
    if head is None:
        plugin = _PLUGIN.search(line)
        if plugin is None:
            return None
        return FabricError(None, None, int(plugin["rc"]), None, "unclassified", "", "", "")
    found = _ERROR.search(line)
    if found is None or int(found["provider_error"]) == _FLUSHED:
        return None
    number = int(found["provider_error"])
    return FabricError(
        pid=int(head["pid"]),
        time=int(head["time"]),
        err=int(found["err"]),
        provider_error=number,
        cause=_CAUSES.get(number, "unclassified"),
        host=_known(found["my_host"]),
        peer_host=_known(found["peer_host"]),
        peer_address=_known(found["peer"]),
    )


def _known(text: str | None) -> str:
    return "" if text in (None, "N/A") else str(text)


def suspects(errors: Iterable[FabricError]) -> list[str]:
    """Return the hosts that most others name, or that name most others; none when it is a tie.

    A host that many name is the suspect; a host that names many is, when nobody names one host
    more often. A peer without a host id counts by its address.
    """
    named: dict[str, set[str]] = defaultdict(set)
    names: dict[str, set[str]] = defaultdict(set)
    for error in errors:
        peer = error.peer_host or error.peer_address
        if error.host and peer:
            named[peer].add(error.host)
            names[error.host].add(peer)
    for table in (named, names):
        most = max(map(len, table.values()), default=0)
        found = sorted(host for host, others in table.items() if len(others) == most)
        if most > 1 and len(found) == 1:
            return found
    return []
