"""The life of the node agent: flags, one reading, readiness, pause, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.agents import Agent, parse
from support.procs import eventually
from support.sources import value
from support.sysfs import efa_node, infiniband_node
from tailwatch.agents.node.collectors import COLLECTORS
from tailwatch.agents.node.flags import parse as parse_flags
from tailwatch.errors import UsageError


def agent_on(folder: Path, sysfs: Path, *more: str | Path) -> Agent:
    """Start an agent on a tree with the sources that read it."""
    return Agent(
        "node",
        [
            *("--node", "n", "--web.listen-address", "127.0.0.1:0", "--path.sysfs", sysfs),
            *("--collector.disable-defaults", "--collector.efa", "--collector.infiniband"),
            *more,
        ],
        folder / "ready",
    )


def test_every_source_has_a_switch() -> None:
    """All sources run unless they are switched off; with the defaults off, those that are named."""
    everything = {
        *("efa", "gpu", "host", "infiniband", "nvlink", "pods", "processes", "steps", "xid")
    }
    assert set(COLLECTORS) == everything
    assert set(parse_flags(["--node", "n"]).collectors) == everything
    for name in everything:
        assert set(parse_flags(["--node", "n", f"--no-collector.{name}"]).collectors) == (
            everything - {name}
        )
        only = ["--node", "n", "--collector.disable-defaults", f"--collector.{name}"]
        assert parse_flags(only).collectors == (name,)


def test_help_names_every_flag() -> None:
    """`tailwatch agent node --help` has each flag with a word on what it is for."""
    done = subprocess.run(
        [sys.executable, "-m", "tailwatch", "agent", "node", "--help"],
        capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    options = done.stdout.partition("options:")[2]
    for flag in (
        "--node", "--once", "--path.sysfs", "--path.procfs", "--nvml.library", "--kmsg.path",
        "--podresources.socket", "--steps.directory", "--web.listen-address", "--web.config.file",
        "--fabricmanager.log", "--xid.overrides", "--instance-type", "--nvlink.per-link",
        "--canary.listen-address", "--canary.peer", "--collector.disable-defaults",
        *(f"--collector.{name}" for name in COLLECTORS),
        *(f"--no-collector.{name}" for name in COLLECTORS),
    ):  # fmt: skip
        (line,) = [
            line for line in options.splitlines() if f" {flag} " in f"{line},".replace(",", " ")
        ]
        assert len(line.split("  ")[-1]) > 5, line


def test_flags_reach_the_sources() -> None:
    """Each flag is one field of what the sources are told."""
    flags = parse_flags(
        [
            *("--node", "n", "--path.sysfs", "/a", "--path.procfs", "/b", "--kmsg.path", "/c"),
            *("--nvml.library", "/d", "--podresources.socket", "/e", "--instance-type", "f"),
            *("--nvlink.per-link", "--canary.peer", "g=h:1", "--canary.peer", "i=j:2"),
            *("--canary.listen-address", "k:3", "--steps.directory", "/l"),
            *("--fabricmanager.log", "/m", "--xid.overrides", "/o"),
        ]
    )
    config = flags.config
    assert (config.sysfs, config.procfs, config.kmsg) == (Path("/a"), Path("/b"), Path("/c"))
    assert (config.nvml_library, config.podresources) == ("/d", Path("/e"))
    assert (config.instance_type, config.nvlink_per_link) == ("f", True)
    assert (config.canary_peers, config.canary_listen) == (("g=h:1", "i=j:2"), "k:3")
    assert (config.fabricmanager_log, config.line_overrides) == (Path("/m"), Path("/o"))
    assert (config.rings, config.log) == (Path("/l/rings"), Path("/l/log"))
    assert flags.doorbell == Path("/l/doorbell")


def test_steps_directory_alone_is_enough(tmp_path: Path) -> None:
    """With `--steps.directory` rings, log and doorbell lie below it."""
    agent = Agent(
        "node",
        [
            *("--node", "n", "--listen", "127.0.0.1:0", "--steps.directory", tmp_path / "steps"),
            *("--collector.disable-defaults", "--collector.steps"),
        ],
        tmp_path / "ready",
    )
    assert (tmp_path / "steps/rings").is_dir()
    assert (tmp_path / "steps/doorbell").is_socket()
    assert agent.kill(signal.SIGTERM) == 0


def test_once_prints_one_exposition(tmp_path: Path) -> None:
    """`--once` reads everything there is, prints it and ends, also where most of it is missing."""
    efa_node(tmp_path / "sys", "p4d.24xlarge")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailwatch.agents.node.main", "--node", "n", "--once"),
            *("--path.sysfs", tmp_path / "sys", "--kmsg.path", tmp_path / "none"),
            *("--podresources.socket", tmp_path / "none", "--nvml.library", tmp_path / "none"),
        ],
        capture_output=True,
        timeout=60,
        check=True,
    )
    samples = parse(done.stdout)
    assert value(samples, "tailwatch_efa_devices") == 4
    assert value(samples, "tailwatch_source_up", source="efa", device="") == 1
    sources = {dict(labels)["source"] for name, labels in samples if name == "tailwatch_source_up"}
    assert sources == set(COLLECTORS) - {"steps"}


def test_ready_names_each_source(tmp_path: Path) -> None:
    """Ready has a line a source with how much of it is fresh."""
    infiniband_node(tmp_path / "sys", 2)
    agent = agent_on(tmp_path, tmp_path / "sys")
    status, body, _ = agent.get("/-/ready")
    assert (status, body) == (200, b"efa: 0 of 0 fresh\ninfiniband: 2 of 2 fresh\n")
    assert agent.get("/-/healthy")[0] == 200
    agent.kill()


def test_pause_and_resume(tmp_path: Path) -> None:
    """SIGUSR1 closes every descriptor of a device and says so; SIGUSR2 reads all again."""
    efa_node(tmp_path / "sys", "p4d.24xlarge")
    agent = agent_on(tmp_path, tmp_path / "sys")
    open_files = Path(f"/proc/{agent.process.pid}/fd")

    def held() -> int:
        links = (os.path.realpath(path) for path in list(open_files.iterdir()))
        return sum(1 for target in links if target.startswith(str(tmp_path / "sys")))

    assert held() > 100
    agent.process.send_signal(signal.SIGUSR1)
    assert eventually(lambda: held() == 0)
    assert eventually(lambda: agent.value("tailwatch_node_paused") == 1)
    status, body, _ = agent.get("/-/ready")
    assert status == 503
    assert b"paused" in body
    assert agent.get("/-/healthy")[0] == 200
    assert agent.value("tailwatch_efa_devices") is None
    agent.process.send_signal(signal.SIGUSR2)
    assert eventually(lambda: agent.value("tailwatch_efa_devices") == 4)
    assert eventually(lambda: agent.get("/-/ready")[0] == 200)
    assert agent.kill(signal.SIGTERM) == 0


def test_restart_is_no_event(tmp_path: Path) -> None:
    """A new process shows the same counters, no reset and no error."""
    efa_node(tmp_path / "sys", "p5.48xlarge")
    seen = []
    for _ in range(2):
        agent = agent_on(tmp_path, tmp_path / "sys")
        samples = agent.samples()
        assert agent.kill(signal.SIGTERM) == 0
        seen.append({k: v for k, v in samples.items() if k[0].endswith("_total")})
        assert not any(name == "tailwatch_source_errors_total" for name, _ in samples)
    assert seen[0] == seen[1]


def test_sigterm_is_quick(tmp_path: Path) -> None:
    """SIGTERM ends an agent with many devices with 0 within 2 s."""
    efa_node(tmp_path / "sys", "p5.48xlarge")
    agent = agent_on(tmp_path, tmp_path / "sys")
    started = time.monotonic()
    assert agent.kill(signal.SIGTERM) == 0
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--canary.peer", "x"], "--canary.peer: 'x', expected name=host:port"),
        (["--canary.peer", "x=y"], "--canary.peer: 'y', expected host:port"),
        (["--canary.listen-address", "x"], "--canary.listen-address: 'x', expected host:port"),
        (["--web.config.file", "/nowhere"], "/nowhere: No such file or directory"),
    ],
)
def test_bad_usage(tmp_path: Path, flags: list[str], said: str) -> None:
    """Values that cannot be are one line and the code 2."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailwatch.agents.node.main", "--node", "n"),
            *("--collector.disable-defaults", "--collector.host", "--listen", "127.0.0.1:0"),
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_node_name_has_no_slash() -> None:
    """A node's name is part of a file's."""
    with pytest.raises(UsageError, match="--node"):
        parse_flags(["--node", "a/b"])
