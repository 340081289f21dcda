"""Pods as the node itself sees them: their cgroups, their log directories, their processes.

Contract: nothing is guessed. A pod whose log directory cannot be seen may well be alive; a process
is mapped only by the host's own process ids, never by those of a container.

Cost: one listing of `/var/log/pods`, a walk of about 10 directories for `PodStates`, and one small
file a process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tailwatch.agents.node.sysfs import attribute

POD_LOGS = Path("/var/log/pods")
_UID = re.compile(
    r"(?:^|[/-])pod(?P<uid>[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
    r"|[0-9a-f]{32})(?:\.slice)?(?:/|$)"
)
_LOG_FOLDER = re.compile(r"(?P<namespace>[^_]+)_(?P<name>[^_]+)_(?P<uid>[^_]+)")
_DEPTH = 3
# The process id namespace of the host has a fixed inode in every kernel.
_HOST_PID_NAMESPACE = "pid:[4026531836]"


class PodName(NamedTuple):
    """What people call a pod."""

    namespace: str
    name: str


NO_POD = PodName("", "")
"""Stands for the processes of no known pod."""


def pod_uid(cgroup: str) -> str:
    """Return the uid of the pod a cgroup path (or `/proc/<pid>/cgroup`) is of, "" for none.

    >>> pod_uid("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
    ...         "0a1b2c3d_1111_2222_3333_444455556666.slice/cri-containerd-5f.scope")
    '0a1b2c3d-1111-2222-3333-444455556666'
    """
    for line in cgroup.splitlines():
        if found := _UID.search(line):
            return found["uid"].replace("_", "-")
    return ""


def pod_names(logs: Path) -> dict[str, PodName]:
    """Return the pods that have a log directory, by uid; none where it cannot be seen.

    Args:
        logs: kubelet's directory of pod logs, `<namespace>_<name>_<uid>` each.
    """
    try:
        folders = os.listdir(logs)
    except OSError:
        return {}
    found = [_LOG_FOLDER.fullmatch(folder) for folder in folders]
    return {of["uid"]: PodName(of["namespace"], of["name"]) for of in found if of}


class PodStates:
    """Which pods have a cgroup now.

    Args:
        sysfs: where `fs/cgroup` lies.
        logs: kubelet's directory of pod logs.
    """

    def __init__(self, sysfs: Path, logs: Path = POD_LOGS) -> None:
        self._uids: dict[PodName, set[str]] = {}
        for uid, pod in pod_names(logs).items():
            self._uids.setdefault(pod, set()).add(uid)
        self._alive = self._running(sysfs / "fs/cgroup") if self._uids else set()

    @staticmethod
    def _running(root: Path) -> set[str]:
        # One hierarchy (v2), or one for each controller (v1), of which any will do.
        roots = [root, root / "systemd", root / "cpu,cpuacct", root / "memory"]
        found: set[str] = set()
        for top in roots:
            pending = [(path, 1) for path in _folders(top) if path.name.startswith("kubepods")]
            while pending:
                path, depth = pending.pop()
                uid = pod_uid(path.name)
                if uid:
                    found.add(uid)
                elif depth < _DEPTH:
                    pending += [(child, depth + 1) for child in _folders(path)]
        return found

    def finished(self, pod: PodName) -> bool:
        """Whether a pod is known to have no cgroup any more."""
        uids = self._uids.get(pod)
        return bool(uids and self._alive) and uids is not None and not uids & self._alive


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def sees_host_processes(procfs: Path) -> bool:
    """Whether process ids here are the host's, as NVML's are."""
    try:
        return os.readlink(procfs / "self/ns/pid") == _HOST_PID_NAMESPACE
    except OSError:
        return False


def uid_of_process(procfs: Path, pid: int) -> str:
    """Return the uid of the pod a process is of; "" when it is of none, or has ended."""
    return pod_uid(attribute(procfs / str(pid) / "cgroup"))


def pods_of_processes(
    uid_of_pid: Mapping[int, str], pods: Mapping[str, PodName]
) -> dict[int, PodName]:
    """Return the pod of each process that has one.

    Args:
        uid_of_pid: uid by process id, "" where the process is of no pod.
        pods: pods by uid; one whose uid is not known never owns a process.
    """
    return {pid: pods[uid] for pid, uid in uid_of_pid.items() if uid and uid in pods}
