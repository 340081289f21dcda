"""The agents' HTTP server: serves what was published, and says when that is not fresh."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from tailwatch.agents.server import AgentServer, Reply
from tailwatch.errors import UsageError


@pytest.fixture
def server() -> Iterator[AgentServer]:
    """A server with a short patience and one path of its own."""
    made = AgentServer(
        "127.0.0.1:0", {"/echo": lambda q: Reply(200, repr(q).encode())}, stale_seconds=0.3
    )
    yield made
    made.close()


def get(server: AgentServer, path: str) -> tuple[int, bytes]:
    """Return status and body of a path."""
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_nothing_before_the_first_snapshot(server: AgentServer) -> None:
    """Before anything was published metrics and readiness are 503, and health is not in doubt."""
    assert get(server, "/metrics") == (503, b"nothing published yet\n")
    assert get(server, "/-/ready")[0] == 503
    assert get(server, "/-/healthy")[0] == 200


def test_snapshot_is_served_until_it_is_stale(server: AgentServer) -> None:
    """A snapshot is served as it is; when no new one comes, the server says so with 503."""
    server.publish(b"a 1\n")
    assert get(server, "/metrics") == (200, b"a 1\n")
    assert get(server, "/-/ready") == (200, b"ok\n")
    server.publish(b"a 2\n")
    assert get(server, "/metrics") == (200, b"a 2\n")
    while get(server, "/-/healthy")[0] == 200:
        pass
    status, body = get(server, "/metrics")
    assert status == 503
    assert body.startswith(b"snapshot is ")
    server.publish(b"a 3\n")
    assert get(server, "/-/healthy") == (200, b"ok\n")


def test_own_paths_get_their_query(server: AgentServer) -> None:
    """A path of the agent gets the decoded query; an unknown one is 404 and names the known."""
    assert get(server, "/echo?a=1&b=x%20y") == (200, b"{'a': '1', 'b': 'x y'}")
    status, body = get(server, "/nowhere")
    assert status == 404
    assert b"/metrics" in body


def test_taken_port_is_bad_usage(server: AgentServer) -> None:
    """A port that is taken is one clear line."""
    with pytest.raises(UsageError, match=r"^--listen: 127.0.0.1:\d+: Address already in use"):
        AgentServer(server.address)


@pytest.mark.parametrize("listen", ["", "host", ":1", "host:", "host:x", "host:70000", "h:-1"])
def test_malformed_address_is_bad_usage(listen: str) -> None:
    """Anything but host:port is refused."""
    with pytest.raises(UsageError, match="expected host:port"):
        AgentServer(listen)
