"""A real Prometheus on 127.0.0.1, for one run.

Contract: as `local.LocalServer`. Scrapes and rule evaluations come every `interval` seconds, each
target is scraped at /metrics. Cost: about 60 MB of memory, ready in about 1 s.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tailwatch.errors import UsageError
from tailwatch.processes import StartError
from tailwatch.prometheus.local import LocalServer
from tailwatch.tools import find_tool

# Prometheus repeats a firing alert to Alertmanager only this often (its default is 1 min): what
# an Alertmanager that was away for a moment missed must reach it within an alert's deadline.
RESEND_SECONDS = 5
PROMTOOL_SECONDS = 30.0


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One address (`host:port`) to scrape, the `job` label it gets, and further labels."""

    job: str
    address: str
    labels: dict[str, str] = {}


def prometheus_config(
    *,
    rules: Sequence[Path],
    targets: Sequence[Target],
    alertmanager: str | None,
    interval: float,
) -> dict[str, Any]:
    """Return the content of prometheus.yml; `alertmanager` is `host:port` or None."""
    every = f"{round(interval * 1000)}ms"
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": every,
            "scrape_timeout": every,
            "evaluation_interval": every,
        },
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [target.address], "labels": target.labels}
                    for target in targets
                    if target.job == job
                ],
            }
            for job in dict.fromkeys(target.job for target in targets)
        ],
    }
    if alertmanager is not None:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    return config


class PrometheusServer(LocalServer):
    """Prometheus.

    Args:
        directory: where prometheus.yml, data/ and prometheus.log go; made if it is not there.
        token: the run's token.
        rules: rule files. One that is missing or that promtool refuses is a `UsageError`.
        targets: what to scrape.
        alertmanager: `host:port` of the Alertmanager, or None.
        interval: seconds between scrapes and between evaluations.
        port: listen here; by default on any free port.
    """

    program = "prometheus"

    def __init__(
        self,
        directory: Path,
        *,
        token: str,
        rules: Sequence[Path] = (),
        targets: Sequence[Target] = (),
        alertmanager: str | None = None,
        interval: float = 1.0,
        port: int | None = None,
    ) -> None:
        config = prometheus_config(
            rules=rules, targets=targets, alertmanager=alertmanager, interval=interval
        )
        super().__init__(directory, token=token, config=config, port=port)
        self._rules = list(rules)

    def _flags(self, port: int) -> list[str]:
        return [
            f"--config.file={self.config_file}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--rules.alert.resend-delay={RESEND_SECONDS}s",
            "--log.level=warn",
        ]

    def _check(self) -> None:
        for path in self._rules:
            # Prometheus takes a name that matches no file for an empty pattern.
            if not path.is_file():
                raise UsageError("no such rule file", source=path)
        check_config(self.config_file)


def check_config(path: Path) -> None:
    """Have promtool check a configuration and its rule files; without a promtool do nothing.

    Raises:
        UsageError: promtool refuses it.
        StartError: promtool itself gives no answer within 30 s.
    """
    try:
        promtool = find_tool("promtool")
    except UsageError:
        return
    try:
        done = subprocess.run(
            [promtool, "check", "config", str(path)],
            capture_output=True,
            text=True,
            timeout=PROMTOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StartError(f"promtool check config {path} gives no answer") from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines()]
        findings = [line for line in lines if line and not line.startswith(("Checking", "SUCCESS"))]
        raise UsageError("; ".join(findings), source=path)
