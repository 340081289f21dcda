"""What a directory lies on, by the mount table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwatch.integrity import storage_of

TABLE = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:30 / /mnt rw - {kind} {source} {options}
31 27 0:31 / /mnt/with\\040blank rw shared:7 - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("kind", "source", "options", "support", "word"),
    [
        ("ext4", "/dev/vdc", "rw", "supported", ""),
        ("ext4", "/dev/vdc", "rw,barrier=0", "warned", "barriers"),
        ("nfs4", "fs-1.efs.region:/", "rw,hard,vers=4.1", "supported", ""),
        ("nfs4", "server:/x", "rw,soft", "warned", "soft"),
        ("nfs", "server:/x", "rw,hard,local_lock=all", "warned", "second job"),
        ("lustre", "10.0.0.1@tcp:/fsx", "rw,flock", "supported", ""),
        ("lustre", "10.0.0.1@tcp:/fsx", "rw", "warned", "second job"),
        ("tmpfs", "tmpfs", "rw", "warned", "memory"),
        ("overlay", "overlay", "rw", "warned", "container"),
        ("fuse", "mountpoint-s3", "rw", "refused", "object store"),
        ("fuse.s3fs", "s3fs", "rw", "refused", "object store"),
        ("fuse.rclone", "remote:bucket", "rw", "refused", "object store"),
        ("fuse.gcsfuse", "bucket", "rw", "refused", "object store"),
        ("fuse.sshfs", "host:/x", "rw", "warned", "not tried"),
        ("9p", "share", "rw", "warned", "not tried"),
    ],
)
def test_storage_by_its_promises(
    tmp_path: Path, kind: str, source: str, options: str, support: str, word: str
) -> None:
    """Each kind of mount is supported, warned of or refused, with the reason in words."""
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.format(kind=kind, source=source, options=options))
    storage = storage_of(Path("/mnt/run/checkpoints"), table)
    assert (storage.support, storage.file_system) == (support, kind)
    assert word in storage.reason
    assert bool(storage.reason) == (support != "supported")


def test_the_deepest_mount_counts_and_of_equals_the_last(tmp_path: Path) -> None:
    """A mount below another one, with a blank in its name, or on top of one, is the one meant."""
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.format(kind="tmpfs", source="t", options="rw"))
    assert storage_of(Path("/mnt/with blank/x"), table).file_system == "xfs"
    assert storage_of(Path("/mnt/with"), table).file_system == "tmpfs"
    assert storage_of(Path("/mntx"), table).file_system == "ext4"
    with table.open("a") as file:
        file.write("32 27 0:32 / /mnt rw - nfs4 s:/ rw\n")
    assert storage_of(Path("/mnt/with"), table).file_system == "nfs4"
    table.write_text("")
    assert storage_of(Path("/mnt"), table).support == "warned"


def test_this_machine_has_an_answer(tmp_path: Path) -> None:
    """The real table is read, also for a directory that is not there yet."""
    assert storage_of(tmp_path / "not" / "there") == storage_of(tmp_path)
    assert storage_of(Path("/dev/shm")).file_system == "tmpfs"
