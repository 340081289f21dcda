"""The NVML library of this process, through nvidia-ml-py.

Contract: `call` raises `NvmlError`, a `SourceError` whose code is NVML's own name of the result.
A library that does not fit the driver raises `NeedsNewProcess`: it is never unloaded, so only a new
process gets another one. Reads take turns (`turn`), as they would inside the driver: whatever has
been inside for longer than `PATIENCE_SECONDS` no longer keeps others out, so one device that hangs
costs the others that long once. When the driver itself then lets nobody through, the oldest call is
the one the others wait for; `blocked` names it.

Cost: about 2 us a call on top of NVML's own time; ctypes gives up the GIL during a call.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tailwatch.agents.node.base import NeedsNewProcess, SourceError

PATIENCE_SECONDS = 0.1
BLOCKED_SECONDS = 1.0

INVALID_ARGUMENT = 2
LOST = frozenset({"GPU_IS_LOST", "RESET_REQUIRED"})
UNSUPPORTED = frozenset(
    {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "DEPRECATED"}
)
_MISMATCH = "LIB_RM_VERSION_MISMATCH"


class NvmlError(SourceError):
    """NVML refused a call; `code` is its name of the reason, as in `GPU_IS_LOST`."""


class Blocked(NamedTuple):
    """The call that has been in NVML longest, and for how many seconds."""

    device: str
    call: str
    seconds: float


class _Visit:
    """One thread's stay in NVML: on which device, in which call, since when."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.call = ""
        self.entered = time.monotonic()
        self.call_began = self.entered


class Library:
    """NVML, loaded from `path` or by the loader's own search; initialised while in use."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.users: list[object] = []
        self._nvml: Any = None
        self._names: dict[int, str] = {}
        self._open = False
        self._opening = threading.Lock()
        self._door = threading.Condition()
        self._visits: dict[int, _Visit] = {}
        self._unknown: dict[str, int] = {}
        self._was_well = False

    def open(self) -> None:
        """Initialise NVML if it is not; raise SourceError with the reason when that fails."""
        with self._opening:
            if self._open:
                return
            if self._nvml is None:
                self._nvml = self._load()
            with self.turn(""):
                self.call("nvmlInit")
            self._open = True

    def _load(self) -> Any:
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            raise SourceError("PACKAGE_MISSING", "the package nvidia-ml-py is missing") from None
        if self.path is not None:
            try:
                nvml.nvmlLib = ctypes.CDLL(self.path)
            except OSError as error:
                raise SourceError("LIBRARY_NOT_FOUND", f"{self.path}: {error}") from error
        prefix = "NVML_ERROR_"
        self._names = {
            value: name.removeprefix(prefix)
            for name, value in vars(nvml).items()
            if name.startswith(prefix)
        }
        return nvml

    def __getattr__(self, name: str) -> Any:
        """Return a constant or a structure of nvidia-ml-py."""
        if name.startswith("_") or self._nvml is None:
            raise AttributeError(name)
        return getattr(self._nvml, name)

    def byref(self, structure: Any) -> Any:
        """Return the address of a structure that NVML is to fill in."""
        return ctypes.byref(structure)

    def driver_version(self) -> str:
        """Return the version of the driver, "" when NVML does not tell."""
        try:
            return str(self.call("nvmlSystemGetDriverVersion"))
        except NvmlError:
            return ""

    def code_name(self, number: int) -> str:
        """Return NVML's name of a result, as in `NOT_SUPPORTED`."""
        return self._names.get(number, f"ERROR_{number}")

    @contextmanager
    def turn(self, device: str) -> Iterator[_Visit]:
        """Wait for a turn on behalf of a device, and hold it for the block."""
        me = threading.get_ident()
        with self._door:
            while (wait := self._wait_seconds()) > 0:
                self._door.wait(wait)
            visit = self._visits[me] = _Visit(device)
        try:
            yield visit
        finally:
            with self._door:
                del self._visits[me]
                self._door.notify_all()

    def _wait_seconds(self) -> float:
        newest = max((visit.entered for visit in self._visits.values()), default=0.0)
        return newest + PATIENCE_SECONDS - time.monotonic() if self._visits else 0.0

    def call(self, name: str, *args: Any) -> Any:
        """Call a function of nvidia-ml-py; raise NvmlError, or NeedsNewProcess."""
        visit = self._visits.get(threading.get_ident())
        if visit is not None:
            visit.call = name
            visit.call_began = time.monotonic()
        try:
            return getattr(self._nvml, name)(*args)
        except self._nvml.NVMLError as error:
            code = self.code_name(error.value)
        finally:
            if visit is not None:
                visit.call = ""
        if code == "UNINITIALIZED":
            self._open = False
        if code == _MISMATCH:
            raise NeedsNewProcess(code, "the NVML library does not fit the driver any more")
        raise NvmlError(code, f"{name}: {code}")

    def blocked(self) -> Blocked | None:
        """Return the oldest call that has been inside NVML for a second or more."""
        with self._door:
            visits = [visit for visit in self._visits.values() if visit.call]
        if not visits:
            return None
        oldest = min(visits, key=lambda visit: visit.call_began)
        seconds = time.monotonic() - oldest.call_began
        if seconds < BLOCKED_SECONDS:
            return None
        return Blocked(oldest.device, oldest.call, seconds)

    def note(self, device: str, code: str | None) -> None:
        """Take the outcome of a device's read; None is a good one.

        Raises NeedsNewProcess when every device answered UNKNOWN twice after NVML had worked: the
        container has lost its devices (its cgroup was written anew), and gets them back only by
        being made anew. A process to which no device ever answered is such a new one already.
        """
        with self._door:
            if code is None:
                self._was_well = True
            self._unknown[device] = self._unknown.get(device, 0) + 1 if code == "UNKNOWN" else 0
            revoked = self._was_well and all(count >= 2 for count in self._unknown.values())
        if revoked:
            raise NeedsNewProcess("UNKNOWN", "every GPU answers UNKNOWN: the devices were revoked")

    def forget(self, device: str) -> None:
        """Leave a device that is no longer listed out of what `note` knows."""
        with self._door:
            self._unknown.pop(device, None)

    def shut_down(self) -> None:
        """Undo `open`, unless a call that hangs is still inside."""
        with self._door:
            inside = bool(self._visits)
        if self._open and not inside:
            self._open = False
            self._unknown.clear()
            self.call("nvmlShutdown")


_libraries: dict[str | None, Library] = {}
_lock = threading.Lock()


def use(path: str | None, user: object) -> Library:
    """Return the library of this process for one more user of it."""
    with _lock:
        library = _libraries.setdefault(path, Library(path))
        library.users.append(user)
        return library


def leave(library: Library, user: object) -> None:
    """Take a user off; the last one shuts NVML down."""
    with _lock:
        if user in library.users:
            library.users.remove(user)
        if library.users:
            return
    try:
        library.shut_down()
    except SourceError:
        return
