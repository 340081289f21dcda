"""From a metric to a delivered notification, on the real parts."""

from __future__ import annotations

import resource
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from support.monitoring import Exposition
from support.procs import eventually
from tailwatch.alerts.alertmanager import alertmanager_config
from tailwatch.notices import AlertNotice, read_notices
from tailwatch.prometheus.alertmanager import AlertmanagerServer
from tailwatch.prometheus.query import PrometheusClient
from tailwatch.prometheus.receiver import start_receiver
from tailwatch.prometheus.server import PrometheusServer, Target

RULES = """
groups:
  - name: test
    rules:
      - alert: Late
        expr: lateness_seconds > 1
        for: 1s
        labels: {severity: page}
"""


def one(path: Path, rank: str, status: str) -> Callable[[], AlertNotice | None]:
    """Return a question: the first notice about this rank with this status, if there is one."""

    def look() -> AlertNotice | None:
        for notice in read_notices(path).notices:
            if notice.labels["rank"] == rank and notice.status == status:
                return notice
        return None

    return look


def test_a_late_rank_reaches_the_receiver_and_so_does_its_end(
    tmp_path: Path, exposition: Exposition
) -> None:
    """An alert is delivered with its labels, firing and resolved, also over a full disk."""
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES)
    token = secrets.token_hex(8)
    exposition.show({"0": 0.0, "1": 0.0})
    log = tmp_path / "webhook.jsonl"
    receiver = start_receiver(log, directory=tmp_path / "receiver", token=token)
    alertmanager = AlertmanagerServer(
        tmp_path / "alertmanager", token=token, config=alertmanager_config(receiver.url)
    )
    with alertmanager:
        prometheus = PrometheusServer(
            tmp_path / "prometheus",
            token=token,
            rules=[rules],
            targets=[Target(job="node", address=exposition.address, labels={"zone": "z1"})],
            alertmanager=alertmanager.address,
        )
        with prometheus, PrometheusClient(prometheus.url) as client:
            started = time.time()
            assert eventually(lambda: client.value("sum(up)") == 1)
            assert eventually(lambda: client.value('ALERTS{alertname="Late"}') is None)

            # The receiver cannot write: Alertmanager has to send again.
            pid, limit = receiver.process.pid, resource.RLIMIT_FSIZE
            resource.prlimit(pid, limit, (300, 1 << 30))
            shown_ns = time.time_ns()
            exposition.show({"0": 0.0, "1": 5.0})
            assert eventually(lambda: "cannot write" in receiver.process.output())
            assert log.read_bytes() == b""
            resource.prlimit(pid, limit, (1 << 30, 1 << 30))
            assert eventually(one(log, "1", "firing"))
            firing = one(log, "1", "firing")()
            assert firing is not None
            assert firing.name == "Late"
            expected = {"run": "r1", "node": "n0", "rank": "1", "zone": "z1", "severity": "page"}
            assert firing.labels.items() >= expected.items()
            assert firing.ends_at_ns is None
            assert shown_ns < firing.starts_at_ns < firing.received_ns

            exposition.show({"0": 0.0, "1": 0.0})
            assert eventually(one(log, "1", "resolved"))
            resolved = one(log, "1", "resolved")()
            assert resolved is not None
            assert resolved.ends_at_ns is not None
            assert resolved.starts_at_ns == firing.starts_at_ns < resolved.ends_at_ns
            assert one(log, "0", "firing")() is None

            late = client.range('lateness_seconds{rank="1"}', started, time.time(), 1.0)
            assert [series["metric"]["rank"] for series in late.series] == ["1"]
            assert {"0", "5"} <= {value for _, value in late.series[0]["values"]}
    receiver.stop()
    everything = read_notices(log)
    assert (everything.foreign_bodies, everything.broken_lines) == (0, 0)
    assert {n.name for n in everything.notices} == {"Late"}
