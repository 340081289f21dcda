"""Prometheus and Alertmanager: starting them, asking, and every way in which that fails."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.monitoring import Exposition
from support.procs import eventually
from tailwatch.alerts.alertmanager import alertmanager_config
from tailwatch.errors import UsageError
from tailwatch.processes import StartError, find_by_token
from tailwatch.prometheus.alertmanager import AlertmanagerServer
from tailwatch.prometheus.query import PrometheusClient, PrometheusError
from tailwatch.prometheus.server import PrometheusServer, Target

BROKEN = "groups: [{name: a, rules: [{alert: A, expr: 'sum('}]}]"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """A Prometheus that scrapes nothing."""
    directory = tmp_path_factory.mktemp("prometheus")
    with PrometheusServer(directory, token=secrets.token_hex(8)) as server:
        yield server


def test_answers(prometheus: PrometheusServer) -> None:
    """Vectors, scalars, one value, no value and NaN come back as what they are."""
    with PrometheusClient(prometheus.url) as client:
        (sample,) = client.instant('label_replace(vector(2.5), "a", "b", "", "")')
        assert (sample.labels, sample.value) == ({"a": "b"}, 2.5)
        assert [(s.labels, s.value) for s in client.instant("7")] == [({}, 7.0)]
        assert client.value("vector(3)") == 3.0
        assert client.value("no_such_series") is None
        assert client.value("vector(0) / 0") is None
        answer = client.range("vector(1)", 1000.0, 1010.0, 5.0)
        assert answer.series == [{"metric": {}, "values": [[1000, "1"], [1005, "1"], [1010, "1"]]}]


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        ("sum(", "sum(: "),
        ("up[5m]", "gives a matrix"),
        ('label_replace(vector(1), "a", "b", "", "") or vector(2)', "gives 2 series"),
    ],
)
def test_bad_queries(prometheus: PrometheusServer, expr: str, message: str) -> None:
    """A query that cannot give one number is an error that quotes it."""
    with PrometheusClient(prometheus.url) as client, pytest.raises(PrometheusError) as caught:
        client.value(expr)
    assert message in str(caught.value)
    assert expr in str(caught.value)


def test_port_taken_by_another_prometheus(tmp_path: Path, prometheus: PrometheusServer) -> None:
    """On a port that is taken the start fails and says so, though somebody ready answers there."""
    port = int(prometheus.address.rpartition(":")[2])
    token = secrets.token_hex(8)
    second = PrometheusServer(tmp_path, token=token, port=port)
    with pytest.raises(StartError) as caught:
        second.start()
    assert "prometheus ended" in str(caught.value)
    assert "address already in use" in str(caught.value)
    assert str(tmp_path / "prometheus.log") in str(caught.value)
    assert find_by_token(token) == []


def test_prometheus_that_dies(tmp_path: Path, exposition: Exposition) -> None:
    """After its death a question is a clear error; started again it has the old samples."""
    exposition.show({"0": 1.5})
    target = Target(job="node", address=exposition.address)
    server = PrometheusServer(tmp_path, token=secrets.token_hex(8), targets=[target], interval=0.2)
    server.start()
    with PrometheusClient(server.url) as client:
        assert eventually(lambda: client.value("lateness_seconds") == 1.5)
        os.kill(server.process.pid, signal.SIGKILL)
        assert server.process.wait(20) == -signal.SIGKILL
        with pytest.raises(PrometheusError) as caught:
            client.value("up")
        assert server.url in str(caught.value)
        assert "no answer" in str(caught.value)
        url = server.url
        server.start()
        assert server.url == url
        assert client.value("max_over_time(lateness_seconds[1h])") == 1.5
    server.stop()
    server.stop()


@pytest.mark.parametrize(
    ("content", "message"), [(BROKEN, "rules.yml"), (None, "no such rule file")]
)
def test_rules_that_are_none(tmp_path: Path, content: str | None, message: str) -> None:
    """A rule file that is missing or wrong is a usage error before anything is started."""
    rules = tmp_path / "rules.yml"
    if content is not None:
        rules.write_text(content)
    with pytest.raises(UsageError, match=message):
        PrometheusServer(tmp_path / "p", token="t", rules=[rules]).start()


def test_no_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a binary the error names it and says how to get one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for server in (
        PrometheusServer(tmp_path / "p", token="t"),
        AlertmanagerServer(
            tmp_path / "a", token="t", config=alertmanager_config("http://localhost/")
        ),
    ):
        with pytest.raises(UsageError, match=f"{server.program}: not found; run"):
            server.start()


def test_no_place_to_write(tmp_path: Path) -> None:
    """A directory that cannot be made is a clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"prometheus cannot be started: .*Not a directory"):
        PrometheusServer(tmp_path / "file" / "p", token="t").start()


def test_alertmanager_configuration_that_is_refused(tmp_path: Path) -> None:
    """What Alertmanager says about its configuration is in the error."""
    config = alertmanager_config("http://127.0.0.1:1/")
    config["route"]["receiver"] = "nobody"
    with pytest.raises(StartError, match=r"alertmanager ended .*nobody"):
        AlertmanagerServer(tmp_path, token="t", config=config).start()
