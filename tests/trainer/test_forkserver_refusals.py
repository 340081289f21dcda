"""When a rank is started and not forked: no server, other conditions, code that has changed.

The ranks here import next to nothing, so that starting one takes no time.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.forking import Node, rank_environment
from tailwatch.processes import same_process, start_ticks, wait_until

RANK = """
import os, sys, threading, time
VERSION = 1

def preload():
    if "FORKED_RANK_THREAD" in os.environ:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

def main(argv):
    print(VERSION, os.getppid(), os.getpid(), flush=True)
    if argv == ["stay"]:
        time.sleep(600)
    return 7

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with a small rank, in a folder of its own."""
    (tmp_path / "small_rank.py").write_text(RANK)
    node = Node(tmp_path / "log", rank_environment(PYTHONPATH=str(tmp_path)), "small_rank")
    yield node
    node.close()


def _run(node: Node, **options: Any) -> tuple[int, str, str]:
    """Return the rank's version, how it came about, and what its shim said."""
    status, out, err = node.run(**options)
    assert status == 7, err
    version, parent, _ = (int(word) for word in out.split())
    return version, "forked" if parent == node.server.pid else "started", err


def _lower_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))


def _other_niceness() -> None:
    os.nice(1)


def _one_processor() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"env": {"PYTHONHASHSEED": "1"}}, "another PYTHONHASHSEED"),
        ({"env": {"OMP_NUM_THREADS": "2"}}, "another OMP_NUM_THREADS"),
        ({"env": {"LD_PRELOAD": ""}}, ""),
        ({"env": {"TAILWATCH_RUN_TOKEN": "another"}}, "another TAILWATCH_RUN_TOKEN"),
        ({"cwd": "/"}, "another working directory"),
        ({"umask": 0o077}, "other conditions: Umask"),
        ({"preexec_fn": _lower_limit}, "other conditions: limits"),
        ({"preexec_fn": _other_niceness}, "other conditions: niceness"),
        ({"preexec_fn": _one_processor}, "other conditions: Cpus_allowed"),
    ],
)  # fmt: skip
def test_a_rank_that_a_fork_could_not_be_is_started(
    node: Node, changed: dict[str, Any], said: str
) -> None:
    """The rank runs all the same, under its own conditions, and says why it took long."""
    if "env" in changed:
        changed = {"env": node.environment | changed["env"]}
    _, how, err = _run(node, **changed)
    assert (how, said in err) == ("started" if said else "forked", True)


def test_the_environment_may_differ_in_all_that_is_read_later(node: Node) -> None:
    """What torchrun sets for each rank is handed over."""
    environment = node.environment | {
        "RANK": "1", "CUDA_VISIBLE_DEVICES": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_RUN_ID": "x", "NCCL_DEBUG": "INFO",
    }  # fmt: skip
    assert _run(node, env=environment)[1:] == ("forked", "")


def test_code_that_has_changed_is_run_as_it_is_now(node: Node, tmp_path: Path) -> None:
    """The stale server says no and ends; the next one has imported what is there."""
    assert _run(node)[:2] == (1, "forked")
    stale = node.server.pid
    (tmp_path / "small_rank.py").write_text(RANK.replace("VERSION = 1", "VERSION = 23"))
    version, how, err = _run(node)
    assert (version, how) == (23, "started")
    assert "small_rank.py has changed since it was imported" in err
    wait_until(lambda: node.server.pid is None, 20, "the stale server has ended")
    assert node.ensure() != stale
    assert _run(node)[:2] == (23, "forked")


def test_a_server_with_threads_forks_nothing(tmp_path: Path) -> None:
    """A lock that another thread holds would stay locked in the fork: ranks are started."""
    (tmp_path / "small_rank.py").write_text(RANK)
    environment = rank_environment(PYTHONPATH=str(tmp_path), FORKED_RANK_THREAD="1")
    node = Node(tmp_path / "log", environment, "small_rank")
    try:
        _, how, err = _run(node)
        assert (how, "it has 2 threads" in err) == ("started", True)
    finally:
        node.close()


def test_a_killed_server_takes_its_ranks_along_and_is_replaced(node: Node) -> None:
    """No rank lives on unseen: its shim ends as killed, and the next ranks run without a server."""
    shim = node.start("stay")
    assert shim.stdout is not None
    _, server, rank = (int(word) for word in shim.stdout.readline().split())
    ticks = start_ticks(rank) or 0
    os.kill(server, signal.SIGKILL)
    _, err = shim.communicate(timeout=20)
    assert (shim.returncode, "the fork server has ended" in err) == (-signal.SIGKILL, True)
    wait_until(lambda: not same_process(rank, ticks), 20, "the rank is gone")
    wait_until(lambda: node.server.pid is None, 20, "the server is seen to be gone")
    assert _run(node)[1] == "started"
    assert node.ensure() != server
    assert _run(node)[1] == "forked"


def test_a_started_rank_dies_with_its_launcher(node: Node, tmp_path: Path) -> None:
    """The tie of a rank that was not forked: the kernel kills it when its launcher ends."""
    command = node.server.command(["stay"])
    command[4] = "nobody-serves-here"
    program = (
        "import os, subprocess, sys, time; command = sys.argv[1:]; command[5] = str(os.getpid());"
        "subprocess.Popen(command, stdout=open('rank', 'w')); time.sleep(600)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, *command], cwd=tmp_path, env=node.environment,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    told = tmp_path / "rank"
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"), 30, "the rank runs")
    rank = int(told.read_text().split()[2])
    ticks = start_ticks(rank) or 0
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not same_process(rank, ticks), 20, "the rank is gone")
