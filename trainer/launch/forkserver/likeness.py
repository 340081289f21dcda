"""Whether a rank forked here would be the rank that its shim would start.

Contract: what a fork cannot carry over has to be the same on both sides: variables that are read
when the interpreter or a library starts, limits, privileges, processors, cgroup, namespaces, the
working directory. And no file that was imported may have changed since.

Cost: one stat a module that is loaded (10 ms for all of torch) and seven small reads of /proc.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from tailwatch.processes import TOKEN_VARIABLE

# Read before any line of a rank runs. Whatever else is read later is handed over with the request.
_EARLY = (
    "PYTHON", "LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "OMP_", "GOMP_", "KMP_", "MKL_",
    "OPENBLAS_", "ATEN_", "TORCH_", "PYTORCH_",
)  # fmt: skip
# torchrun sets it for each rank; it is read when a process group is made.
_LATE = ("TORCH_NCCL_",)
_STATUS = (
    "Umask:", "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:",
    "NoNewPrivs:", "Seccomp:", "Cpus_allowed:", "Mems_allowed:",
)  # fmt: skip
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")

Stamp = tuple[int, int, int]


def early(environment: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the variables that have to be the same before a rank begins."""
    found = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    return {
        name: value
        for name, value in found.items()
        # A process is found by the token it was started with, and a fork was started with ours.
        if (name.startswith(_EARLY) and not name.startswith(_LATE)) or name == TOKEN_VARIABLE
    }


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return the first name whose values differ, or an empty string; absent is empty."""
    names = sorted(ours.keys() | theirs.keys())
    return next((name for name in names if ours.get(name, "") != theirs.get(name, "")), "")


def conditions(pid: int) -> dict[str, str]:
    """Return what a process runs under, by name; raise OSError when it is gone."""
    found = {}
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(_STATUS):
                name, value = line.split(":", 1)
                found[name] = value.strip()
    for name in ("limits", "cgroup", "oom_score_adj"):
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            found[name] = file.read()
    for name in _NAMESPACES:
        found[f"{name} namespace"] = os.readlink(f"/proc/{pid}/ns/{name}")
    found["root"] = os.readlink(f"/proc/{pid}/root")
    found["niceness"] = str(os.getpriority(os.PRIO_PROCESS, pid))
    return found


def ignored_signals(pid: int) -> set[int]:
    """Return the numbers of the signals that a process ignores; raise OSError when it is gone."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        [mask] = [int(line.split()[1], 16) for line in file if line.startswith("SigIgn:")]
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


class LoadedCode:
    """The files of all modules that are loaded, as they are now."""

    def __init__(self) -> None:
        modules = list(sys.modules.values())
        paths = {getattr(module, "__file__", None) for module in modules}
        self._stamps = {path: _stamp(path) for path in paths if isinstance(path, str)}

    def changed(self) -> str:
        """Return a file that is not what it was, or an empty string."""
        return next((p for p, stamp in self._stamps.items() if _stamp(p) != stamp), "")


def _stamp(path: str) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
