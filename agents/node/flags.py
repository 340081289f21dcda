"""The flags of the node agent, named as Prometheus' exporters name theirs.

Contract: `parse` returns what is to run, or ends with 2 and one line. `--collector.NAME` and
`--no-collector.NAME` switch one source, `--collector.disable-defaults` all that are not named.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from tailwatch.agents.node.collectors import COLLECTORS, NodeConfig
from tailwatch.errors import UsageError

_STEPS = Path("/run/tailwatch")


class Flags(NamedTuple):
    """What the command line says.

    `rings_flag` and `log_flag` are the flags their directories came from.
    """

    config: NodeConfig
    collectors: tuple[str, ...]
    listen: str
    web_config: Path | None
    doorbell: Path
    ready_file: Path | None
    once: bool
    rings_flag: str
    log_flag: str


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="tailwatch agent node",
        description="Watches one node: its ranks, GPUs, NVLink, EFA and other RDMA devices.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--node", required=True, help="name of this node, as Kubernetes knows it")
    add("--once", action="store_true", help="read everything once, print it and end")
    add("--web.listen-address", "--listen", dest="listen", default="127.0.0.1:9750",
        metavar="HOST:PORT", help="where to serve; port 0 takes a free one")  # fmt: skip
    add("--web.config.file", dest="web_config", type=Path, metavar="FILE",
        help="TLS, client certificates and users, in exporter-toolkit's format")  # fmt: skip
    add("--ready-file", type=Path, metavar="FILE", help="gets the address, once it serves")
    add("--path.sysfs", dest="sysfs", type=Path, default=Path("/sys"), metavar="DIR",
        help="where the host's sysfs is mounted (/sys)")  # fmt: skip
    add("--path.procfs", dest="procfs", type=Path, default=Path("/proc"), metavar="DIR",
        help="where the host's procfs is mounted (/proc)")  # fmt: skip
    add("--nvml.library", dest="nvml", metavar="FILE", help="libnvidia-ml.so.1 to load")
    add("--kmsg.path", dest="kmsg", type=Path, default=Path("/dev/kmsg"), metavar="FILE",
        help="the kernel log (/dev/kmsg)")  # fmt: skip
    add("--fabricmanager.log", dest="fabricmanager", type=Path, metavar="FILE",
        help="log of NVIDIA's fabric manager, for the source xid")  # fmt: skip
    add("--xid.overrides", dest="line_overrides", type=Path, metavar="FILE",
        help="TOML file of other severities and actions for Xid and kernel lines")  # fmt: skip
    add("--podresources.socket", dest="pods", type=Path, metavar="SOCKET",
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        help="kubelet's PodResources API; mount its directory")  # fmt: skip
    add("--instance-type", metavar="TYPE", help="EC2 instance type, for what it should have")
    add("--nvlink.per-link", dest="per_link", action="store_true",
        help="series for each NVLink and not only for each GPU")  # fmt: skip
    add("--canary.listen-address", dest="canary_listen", metavar="HOST:PORT",
        help="answer other nodes' fabric canaries there")  # fmt: skip
    add("--canary.peer", dest="canary_peers", action="append", default=[],
        metavar="NAME=HOST:PORT", help="another node's canary to measure; repeatable")  # fmt: skip
    add("--steps.directory", dest="steps", type=Path, metavar="DIR",
        help=f"holds rings/, log/ and the doorbell (default {_STEPS})")  # fmt: skip
    add("--rings", type=Path, metavar="DIR", help="directory of rings, on tmpfs")
    add("--log", type=Path, metavar="DIR", help="directory of the step log")
    add("--doorbell", type=Path, metavar="SOCKET", help="datagram socket to create")
    for name in COLLECTORS:
        add(f"--collector.{name}", dest=f"collector_{name}", default=None,
            action=argparse.BooleanOptionalAction,
            help=f"read the source {name}, or leave it out")  # fmt: skip
    add("--collector.disable-defaults", dest="defaults", action="store_false",
        help="only the sources named by --collector.NAME")  # fmt: skip
    return made


def parse(argv: list[str] | None) -> Flags:
    """Return the flags; raise UsageError for values that cannot be."""
    found = parser().parse_args(argv)
    if not found.node or "/" in found.node:
        raise UsageError(f"{found.node!r}, expected a name without '/'", source="--node")
    steps = found.steps or _STEPS
    config = NodeConfig(
        node=found.node,
        rings=found.rings or steps / "rings",
        log=found.log or steps / "log",
        sysfs=found.sysfs,
        procfs=found.procfs,
        nvml_library=found.nvml,
        kmsg=found.kmsg,
        podresources=found.pods,
        instance_type=found.instance_type,
        nvlink_per_link=found.per_link,
        canary_peers=tuple(found.canary_peers),
        canary_listen=found.canary_listen,
        line_overrides=found.line_overrides,
        fabricmanager_log=found.fabricmanager,
    )
    wanted = []
    for name in COLLECTORS:
        switch = getattr(found, f"collector_{name}")
        if switch or (switch is None and found.defaults):
            wanted.append(name)
    if found.once and "steps" in wanted:
        wanted.remove("steps")
    return Flags(
        config=config,
        collectors=tuple(wanted),
        listen=found.listen,
        web_config=found.web_config,
        doorbell=found.doorbell or steps / "doorbell",
        ready_file=found.ready_file,
        once=found.once,
        rings_flag="--rings" if found.rings else "--steps.directory",
        log_flag="--log" if found.log else "--steps.directory",
    )
