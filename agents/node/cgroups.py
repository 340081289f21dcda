"""Pods as the node itself sees them: their cgroups, their log directories, their processes.

Contract: nothing is guessed. A pod whose log directory cannot be seen may well be alive; a process
is mapped only by the host's own process ids, never by those of a container.

Cost: one listing of `/var/log/pods` and a walk of about 10 directories for `PodStates`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

POD_LOGS = Path("/var/log/pods")
_UID = re.compile(
    r"(?:^|[/-])pod(?P<uid>[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
    r"|[0-9a-f]{32})(?:\.slice)?(?:/|$)"
)
_DEPTH = 3
# The process id namespace of the host has a fixed inode in every kernel.
_HOST_PID_NAMESPACE = "pid:[4026531836]"
_NO_VALUE = (1 << 64) - 1


class PodName(NamedTuple):
    """What people call a pod."""

    namespace: str
    name: str


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


class PodStates:
    """Which pods have a cgroup now.

    Args:
        sysfs: where `fs/cgroup` lies.
        logs: kubelet's directory of pod logs, `<namespace>_<name>_<uid>` each.
    """

    def __init__(self, sysfs: Path, logs: Path = POD_LOGS) -> None:
        self._uids: dict[PodName, set[str]] = {}
        try:
            names = os.listdir(logs)
        except OSError:
            names = []
        for name in names:
            parts = name.rsplit("_", 2)
            if len(parts) == 3:
                self._uids.setdefault(PodName(parts[0], parts[1]), set()).add(parts[2])
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


def pods_of_processes(
    uid_of_pid: Mapping[int, str], pods: Mapping[PodName, str]
) -> dict[int, PodName]:
    """Return the pod of each process that has one.

    Args:
        uid_of_pid: uid by process id, "" where the process is of no pod.
        pods: uid by pod, "" where it is not known; such a pod never owns a process.
    """
    by_uid = {uid: pod for pod, uid in pods.items() if uid}
    return {pid: by_uid[uid] for pid, uid in uid_of_pid.items() if uid in by_uid}


def memory_by_pod(
    used: Iterable[tuple[int, int | None]], pods: Mapping[int, PodName]
) -> dict[PodName | None, int]:
    """Return the bytes of GPU memory of each pod; None stands for processes of no known pod.

    Args:
        used: process id and bytes as NVML gives them; all ones mean that it does not know.
    """
    found: dict[PodName | None, int] = {}
    for pid, size in used:
        if size is not None and 0 < size < _NO_VALUE:
            pod = pods.get(pid)
            found[pod] = found.get(pod, 0) + size
    return found
