"""The fork server: a forked rank is the rank that was asked for, and ends as one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from support.forking import RANK, Node, rank_environment
from tailwatch.processes import same_process, wait_until
from tailwatch.trainer.launch.forkserver import shim


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose server has imported torch."""
    node = Node(tmp_path_factory.mktemp("node") / "log", rank_environment())
    yield node
    node.close()


def _gone(processes: list[tuple[int, int]]) -> bool:
    return not any(same_process(*process) for process in processes)


def test_a_forked_rank_is_what_a_started_one_would_be(node: Node) -> None:
    """Arguments, environment, limits, signals and session are the same."""
    environment = node.environment | {"RANK": "7", "MASTER_PORT": "1234"}
    options: dict[str, Any] = {"env": environment}
    status, out, err = node.run("tell", "a b", "", **options)
    started = subprocess.run(
        [sys.executable, "-m", RANK, "tell", "a b", ""],
        **options, capture_output=True, text=True, check=True, start_new_session=True,
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads(started.stdout)


def test_forked_ranks_do_not_share_their_randomness(node: Node) -> None:
    """Whatever a process draws once, each rank has drawn for itself."""
    first, second = (json.loads(node.run("draw")[1]) for _ in range(2))
    assert [name for name in first if first[name] == second[name]] == []


@pytest.mark.parametrize("code", [0, 3, 76])
def test_a_shim_exits_with_the_status_of_its_rank(node: Node, code: int) -> None:
    """The status is the same, and what the rank had buffered is written."""
    assert node.run("exit", str(code)) == (code, "last words", "")


def test_an_exception_ends_as_it_does_in_any_program(node: Node) -> None:
    """Status 1 and the traceback on stderr of the shim."""
    status, _, err = node.run("raise")
    assert (status, err.splitlines()[-1]) == (1, "LookupError: on purpose")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGINT"])
def test_a_shim_dies_of_the_signal_that_its_rank_died_of(node: Node, name: str) -> None:
    """torchrun sees the signal."""
    number = signal.Signals[name]
    assert node.run("die", str(int(number)))[0] == -number


def test_signals_are_handed_on_with_their_sender(node: Node) -> None:
    """The rank sees who sent the signal to the shim, not the server that passed it on."""
    shim_process = node.start("listen")
    assert shim_process.stdout is not None
    shim_process.stdout.readline()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        shim_process.send_signal(number)
        assert json.loads(shim_process.stdout.readline()) == [number, os.getpid()]
    sender = subprocess.Popen(["sh", "-c", f"kill -TERM {shim_process.pid}"])
    assert json.loads(shim_process.stdout.readline()) == [signal.SIGTERM, sender.pid]
    sender.wait()
    shim_process.kill()
    shim_process.communicate()


@pytest.mark.parametrize("stopped", ["nobody", "rank", "server"])
def test_no_rank_outlives_its_killed_shim(node: Node, stopped: str) -> None:
    """SIGKILL to the shim ends the rank, even one that is stopped, even under a stopped server."""
    shim_process, processes = node.stay()
    server = node.server.pid
    assert server is not None
    frozen = {"rank": processes[0][0], "server": server}.get(stopped)
    if frozen is not None:
        os.kill(frozen, signal.SIGSTOP)
    try:
        shim_process.kill()
        shim_process.wait(20)
        wait_until(lambda: _gone(processes[:1]), 20, "the rank is gone")
    finally:
        os.kill(server, signal.SIGCONT)
    wait_until(lambda: _gone(processes), 20, "its child is gone, too")
    shim_process.communicate()


def test_no_child_outlives_its_rank(node: Node) -> None:
    """What a killed rank leaves in its group is killed before its place is taken."""
    shim_process, processes = node.stay()
    os.kill(processes[0][0], signal.SIGKILL)
    shim_process.communicate(timeout=20)
    assert shim_process.returncode == -signal.SIGKILL
    wait_until(lambda: _gone(processes), 20, "its child is gone")


def test_a_connection_that_says_nonsense_harms_nobody(node: Node) -> None:
    """Half a request, a request without files, too long a one: the next rank is forked."""
    name = f"\0{node.server.command([])[4]}"
    body = b"x\0y\0" + b"9\0"
    whole = len(body).to_bytes(8, "little") + body
    nothing = (0).to_bytes(8, "little")
    for words in (b"", b"\1", whole, nothing, whole + shim.GO, (1 << 40).to_bytes(8, "little")):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(name)
            stranger.sendall(words)
    assert node.run("exit", "0") == (0, "last words", "")


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the time limit the shim gives up, and closes, so that no rank is forked later."""
    monkeypatch.setattr(shim, "READY_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"\0silent-{os.getpid()}")
        silent.listen()
        with pytest.raises(shim.NoRank, match="timed out"):
            shim.ask(f"silent-{os.getpid()}", RANK, [])
        connection, _ = silent.accept()
        with connection:
            while connection.recv(1 << 16):
                pass


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's server needs root")
def test_a_server_of_another_user_gets_no_environment() -> None:
    """A socket of that name by somebody else is refused before anything is sent."""
    name = f"foreign-{os.getpid()}"
    program = (
        "import os, socket; os.setuid(12345); s = socket.socket(socket.AF_UNIX);"
        f"s.bind('\\0{name}'); s.listen(); print('up', flush=True);"
        "print(s.accept()[0].recv(9), flush=True)"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(shim.NoRank, match="another user"):
        shim.ask(name, RANK, [])
    assert other.communicate(timeout=20)[0] == "b''\n"
