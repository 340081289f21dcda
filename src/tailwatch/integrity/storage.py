"""What a directory lies on, and whether a checkpoint can be trusted to stay there.

Contract: a commit needs two promises: a rename is atomic for every host, and what was fsynced is
there after a power cut. `storage_of` reads the mount table and says who makes them:

- `supported`: local disks (ext3, ext4, XFS, Btrfs, ZFS, F2FS), NFS and Lustre. On NFS the rename is
  atomic on the server, while other hosts may see the old listing until their attribute cache ends
  (60 s by default); readers wait for that.
- `warned`: works, and loses one of the promises in some way that `reason` names.
- `refused`: object stores behind FUSE, where a rename copies and is not atomic. They are a place to
  copy committed checkpoints to, not to write them in.

Cost: one read of `/proc/self/mountinfo`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

Support = Literal["supported", "warned", "refused"]

_LOCAL = {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"}
_NFS = {"nfs", "nfs4"}
_VOLATILE = {"tmpfs": "the memory of this machine", "ramfs": "the memory of this machine",
             "overlay": "the layer of this container"}  # fmt: skip
_OBJECT_STORES = {"mountpoint-s3", "mount-s3", "s3fs", "goofys", "geesefs", "rclone", "gcsfuse",
                  "blobfuse", "blobfuse2", "s3ql", "yas3fs", "riofs"}  # fmt: skip


class Storage(msgspec.Struct, kw_only=True, frozen=True):
    """The file system below a path; `reason` says why it is not simply supported."""

    mount_point: Path
    file_system: str
    source: str
    support: Support
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.file_system} at {self.mount_point}"
        return f"{text}: {self.reason}" if self.reason else text


def storage_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> Storage:
    """Return what `path` lies on; a path that is not there yet counts for its nearest parent."""
    real = Path(os.path.realpath(path))
    found: tuple[Path, list[str], list[str]] | None = None
    for line in mounts.read_text(errors="surrogateescape").splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        place = Path(_unescape(left.split(" ")[4]))
        # Of mounts on one place the last one is on top.
        if real.is_relative_to(place) and (
            found is None or len(place.parts) >= len(found[0].parts)
        ):
            found = (place, left.split(" "), right.split(" "))
    if found is None:
        return Storage(mount_point=Path("/"), file_system="unknown", source="unknown",
                       support="warned", reason="it is in no mount table")  # fmt: skip
    place, left_fields, right_fields = found
    kind, source = right_fields[0], _unescape(right_fields[1])
    options = {*left_fields[5].split(","), *right_fields[2].split(",")}
    support, reason = _judge(kind, source, options)
    return Storage(
        mount_point=place, file_system=kind, source=source, support=support, reason=reason
    )


def _judge(kind: str, source: str, options: set[str]) -> tuple[Support, str]:
    names = {kind.removeprefix("fuse."), source.rpartition("/")[2].partition(":")[0]}
    if kind.startswith("fuse") and names & _OBJECT_STORES:
        return "refused", (
            "an object store behind FUSE: a rename there is a copy and not atomic, so nothing can"
            " be committed; write to a disk, NFS or Lustre and copy from there"
        )
    if kind in _LOCAL:
        if options & {"nobarrier", "barrier=0"}:
            return "warned", "mounted without barriers: what was fsynced may be lost in a power cut"
        return "supported", ""
    if kind in _NFS:
        if "soft" in options or "softerr" in options:
            return "warned", "mounted soft: a slow server becomes an I/O error; expected hard"
        if options & {"nolock", "local_lock=all", "local_lock=flock"}:
            return "warned", "mounted without locks: a second job on another host is not noticed"
        return "supported", ""
    if kind == "lustre":
        if "flock" not in options:
            return "warned", "mounted without flock: a second job on another host is not noticed"
        return "supported", ""
    if kind in _VOLATILE:
        return "warned", f"checkpoints go with {_VOLATILE[kind]}"
    return "warned", "not tried: rename and fsync may not mean there what a commit needs"


def _unescape(text: str) -> str:
    """Undo the octal escapes of the mount table (blank, tab, newline, backslash)."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text
