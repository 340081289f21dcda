"""The fake NVML library (`fake_nvml.c`): compiled once, loaded anew for each test, told what to be.

Contract: `FakeNvml.tell` replaces the script of the library at once and whole. Each `FakeNvml` is a
copy of its own, so nothing is left of it in the next.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

CONTROL = "FAKE_NVML_CONTROL"
_SOURCE = Path(__file__).with_name("fake_nvml.c")


@functools.cache
def compiled(without: tuple[str, ...] = ()) -> Path:
    """Return the library, compiled without some symbols as an older driver's would be."""
    directory = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = directory / "libnvidia-ml.so.1"
    hidden = "".join(f"{symbol}; " for symbol in without)
    (directory / "symbols").write_text(
        f"{{ global: nvml*; fake*; local: {hidden}_*; }};" if hidden else "{ global: *; };"
    )
    subprocess.run(
        [
            *("cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"),
            *("-o", library, _SOURCE, "-lpthread"),
            f"-Wl,--version-script={directory / 'symbols'}",
        ],
        check=True,
    )
    return library


class Outstanding(NamedTuple):
    """What was taken from the library and not given back."""

    inits: int
    event_sets: int
    gpm_samples: int


class FakeNvml:
    """One copy of the library; `path` is what `--nvml.library` gets."""

    def __init__(
        self, directory: Path, profile: str = "h100", without: tuple[str, ...] = ()
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = str(directory / "libnvidia-ml.so.1")
        self.profile = profile
        self._control = directory / "control"
        self._trace = directory / "trace"
        assert not Path(self.path).exists(), "a library that may be loaded is not replaced"
        shutil.copy(compiled(without), self.path)
        self.tell()
        os.environ[CONTROL] = str(self._control)

    def tell(self, *orders: str) -> None:
        """Replace the script; the orders are explained in the source of the library."""
        lines = [f"profile {self.profile}", f"trace {self._trace}", *orders]
        fresh = self._control.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self._control)

    def calls(self) -> list[str]:
        """Return the calls so far, one `CALL DEVICE` each; `BAD` before one with a bad handle."""
        return self._trace.read_text().splitlines() if self._trace.exists() else []

    def outstanding(self) -> Outstanding:
        """Ask the copy loaded in this process what it has given out."""
        counts = [ctypes.c_int() for _ in range(3)]
        ctypes.CDLL(self.path).fakeOutstanding(*(ctypes.byref(count) for count in counts))
        return Outstanding(*(count.value for count in counts))
