"""Pods as the node sees them: which pod a cgroup is of, and which pods have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwatch.agents.node.cgroups import PodName, PodStates, pod_uid, sees_host_processes

UID = "0a1b2c3d-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        ("0::/kubepods.slice/kubepods-pod" + UID.replace("-", "_") + ".slice/cri-x.scope", UID),
        (f"12:memory:/kubepods/burstable/pod{UID}/abc\n", UID),
        (f"1:name=systemd:/x\n2:cpu:/kubepods/pod{UID}/abc\n", UID),
        ("0::/system.slice/sshd.service", ""),
        ("0::/user.slice/podman-1", ""),
        ("", ""),
    ],
)
def test_pod_of_a_cgroup(text: str, uid: str) -> None:
    """Both cgroup versions and both drivers name the pod; other groups are of none."""
    assert pod_uid(text) == uid


def test_process_ids_of_a_container_are_not_used(tmp_path: Path) -> None:
    """Only in the host's process id namespace do ids mean what NVML means."""
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026532999]")
    assert not sees_host_processes(tmp_path)
    (tmp_path / "self/ns/pid").unlink()
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026531836]")
    assert sees_host_processes(tmp_path)


def test_pod_is_finished_only_when_that_is_known(tmp_path: Path) -> None:
    """Without log directories or without any cgroup nobody is called finished."""
    name = PodName("rl", "a")
    assert not PodStates(tmp_path / "sys", tmp_path / "logs").finished(name)
    (tmp_path / "logs" / f"rl_a_{UID}").mkdir(parents=True)
    assert not PodStates(tmp_path / "sys", tmp_path / "logs").finished(name)
    other = tmp_path / "sys/fs/cgroup/memory/kubepods/pod11111111-1111-2222-3333-444455556666"
    other.mkdir(parents=True)
    assert PodStates(tmp_path / "sys", tmp_path / "logs").finished(name)
    (other.parent / f"pod{UID}").mkdir()
    assert not PodStates(tmp_path / "sys", tmp_path / "logs").finished(name)
