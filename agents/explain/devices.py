"""Lines whose meaning is a catalogue's (kernel, fabric manager, libfabric) as messages.

Contract: never raises. Fatal findings of GPUs are the deepest causes; teardown of channels (Xid
45) shows on every GPU of a job and is pinned on none; an error of a transfer that the peer's side
caused is an echo that points at the peer.
"""

from __future__ import annotations

from tailwatch.agents.lines import Finding, libfabric
from tailwatch.agents.lines.messages import Message, Role


def from_kernel(finding: Finding) -> Message:
    """Return a finding of the kernel log or the fabric manager as a message."""
    prefix = {"xid": "xid_", "sxid": "sxid_"}.get(finding.kind, f"{finding.kind}_")
    role: Role = "cause"
    if finding.action == "ignore":
        role = "noise"
    elif finding.severity == "info" or finding.code in ("45", "154"):
        role = "echo"
    depth = {"fatal": 88, "warning": 66, "info": 0}[finding.severity]
    if finding.action == "restart_app":
        depth = 61
    if finding.kind in ("xid", "gpu") and finding.severity == "fatal":
        depth = 90
    of = {"xid": "gpu", "gpu": "gpu", "sxid": "nvswitch", "mlx5": "NIC", "efa": "EFA device"}
    device = f"{of.get(finding.kind, 'device')} {finding.device}" if finding.device else "the node"
    if finding.kind == "nccl" and finding.process:
        device = f"process {finding.process} (pid {finding.pid})"
    if finding.gpu_instance is not None:
        device += f" instance {finding.gpu_instance}"
    if finding.link is not None:
        device += f" link {finding.link}"
    # Teardown shows on every GPU of a job: it is one incident, and no GPU's.
    if finding.kind == "xid" and finding.code == "45":
        device = "all GPUs of the job"
    return Message(
        kind=f"{prefix}{finding.code}",
        role=role,
        severity=finding.severity,
        action=finding.action,
        meaning=finding.meaning,
        depth=depth,
        subject=device,
        fields={"pid": str(finding.pid)} if finding.pid is not None else {},
    )


def from_libfabric(text: str) -> Message | None:
    """Return what a line of libfabric means, None when it is not one that tells."""
    error = libfabric.parse(text)
    if error is None:
        return _LIBFABRIC_CHATTER if text.startswith("libfabric:") else None
    if error.provider_error is None:
        return None
    peer = error.peer_host or error.peer_address
    remote = error.cause.startswith(("remote_", "reset_by_peer", "unclassified"))
    unreachable = error.cause == "remote_unreachable"
    return Message(
        kind=f"efa_{error.cause}",
        role="echo" if remote else "cause",
        severity="fatal",
        action="look_at_reachability"
        if unreachable
        else "look_at_peer"
        if remote
        else "look_at_rdma_setup",
        meaning=_REMOTE[unreachable] if remote else f"EFA: {error.cause.replace('_', ' ')}",
        depth=40,
        subject=f"peer {peer}" if peer and remote else f"host {error.host}" if error.host else "",
        fields={"peer": peer, "from": error.host} if peer else {},
    )


_REMOTE = {
    True: "The peer was not reachable: security group, subnet, or its node is gone",
    False: "The peer's side of a transfer failed or did not answer",
}
_LIBFABRIC_CHATTER = Message(
    kind="libfabric_notice",
    role="noise",
    severity="info",
    action="ignore",
    meaning="A warning of libfabric without a fault: at start, or while queue pairs are torn down",
)
