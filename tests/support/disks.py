"""Disks of their own: a file system in a file, that can lose its power, be full or read-only."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
FLUSH_LOG, KEEP_LOG = 1, 2

_FORMATS = {
    # Small images would get blocks of 1 KiB, below which Python's buffers hide.
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}


@functools.cache
def unavailable() -> str:
    """Return why no file system can be mounted here; empty when one can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tmpfs(Path(folder), "1m"):
                pass
            with disk(Path(folder) / "ext4", "ext4"):
                pass
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            return f"no file system in a file can be mounted: {error}"
    return ""


def formats() -> list[str]:
    """Return the kinds of file system whose tools are installed."""
    return [kind for kind, command in _FORMATS.items() if shutil.which(command[0])]


@contextmanager
def disk(folder: Path, kind: str) -> Iterator[Path]:
    """Mount a fresh file system below `folder`; `remount` on the path gives it its power back."""
    folder.mkdir(parents=True, exist_ok=True)
    image, place = folder / "image", folder / "mounted"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 * 2**20)
    _run(*_FORMATS[kind], str(image))
    _run("mount", "-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        _unmount(place)
        image.unlink()


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """Mount memory of a limited size below `folder`."""
    place = folder / "tmpfs"
    place.mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    try:
        yield place
    finally:
        _unmount(place)
        place.rmdir()


def cut_power(place: Path, how: int) -> None:
    """Stop the file system as a power cut does; `FLUSH_LOG` lets its journal reach the disk."""
    fd = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", how))
    finally:
        os.close(fd)


def restore_power(place: Path) -> None:
    """Mount it again, with what had reached the disk."""
    _run("umount", str(place))
    _run("mount", "-o", "loop", str(place.parent / "image"), str(place))


def make_read_only(place: Path) -> None:
    """Mount it read-only."""
    _run("mount", "-o", "remount,ro", str(place))


def _unmount(place: Path) -> None:
    try:
        _run("umount", str(place))
    except subprocess.CalledProcessError:
        # Something is open on it: nothing may be left behind, and the test fails all the same.
        _run("umount", "--lazy", str(place))
        raise


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
