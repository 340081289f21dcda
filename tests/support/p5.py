"""A node like a p5.48xlarge in full: 32 EFA devices, 8 H100, a kubelet with its pods, 8 ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.kubelet import FakeKubelet, devices, pod
from support.nvml.fake import FakeNvml
from support.nvml.fixtures import uuid_of
from support.ranks import append_steps, ring
from support.sysfs import Sysfs, efa_node

GPUS = 8


class P5:
    """Such a node; `arguments` are what its agent is started with, `nvml` is its driver."""

    def __init__(self, root: Path, tree: Sysfs, nvml: FakeNvml, kubelet: FakeKubelet) -> None:
        self.tree = tree
        self.nvml = nvml
        self.kubelet = kubelet
        self.arguments: list[str | Path] = [
            *("--path.sysfs", tree.root, "--nvml.library", nvml.path),
            *("--podresources.socket", kubelet.socket, "--steps.directory", root / "steps"),
            *("--kmsg.path", root / "kmsg"),
        ]


@contextmanager
def p5_node(root: Path) -> Iterator[P5]:
    """Build the node below `root`: a pod with an eighth of the devices for each of its ranks."""
    tree = efa_node(root / "sys", "p5.48xlarge")
    tree.instance_type("p5.48xlarge")
    cards = sorted(path.name for path in (tree.root / "class/infiniband").iterdir())
    kubelet = FakeKubelet(root / "kubelet.sock")
    kubelet.pods = [
        pod(
            f"trainer-{index}",
            devices("nvidia.com/gpu", uuid_of(index)),
            devices("vpc.amazonaws.com/efa", *cards[index::GPUS]),
        )
        for index in range(GPUS)
    ]
    os.mkfifo(root / "kmsg")
    # A log in which nothing happens; without a writer it would end.
    quiet = os.open(root / "kmsg", os.O_RDWR)
    for folder in ("rings", "log"):
        (root / "steps" / folder).mkdir(parents=True)
    for rank in range(GPUS):
        writer = ring(root / "steps/rings", rank, world_size=GPUS, node="n")
        append_steps(writer, rank, 1, 20, world_size=GPUS, node="n")
    try:
        yield P5(root, tree, FakeNvml(root / "nvml"), kubelet)
    finally:
        kubelet.stop()
        os.close(quiet)
