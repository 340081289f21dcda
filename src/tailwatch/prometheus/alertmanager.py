"""A real Alertmanager on 127.0.0.1, for one run.

Contract: as `local.LocalServer`; one process, no cluster. A configuration that it refuses is a
`StartError` with the line of its log that says why. Cost: about 40 MB of memory, ready in under
1 s.
"""

from __future__ import annotations

from typing import Any

from tailwatch.prometheus.local import LocalServer


def webhook_config(url: str) -> dict[str, Any]:
    """Return a configuration that sends every alert to one webhook at once, resolved ones too.

    Alerts about different ranks, nodes or runs never share a notification.
    """
    return {
        "route": {
            "receiver": "webhook",
            "group_by": ["alertname", "run", "node", "rank"],
            "group_wait": "0s",
            "group_interval": "1s",
            "repeat_interval": "1h",
        },
        "receivers": [
            {"name": "webhook", "webhook_configs": [{"url": url, "send_resolved": True}]}
        ],
    }


class AlertmanagerServer(LocalServer):
    """Alertmanager; `config` is the content of alertmanager.yml, as `webhook_config` gives it."""

    program = "alertmanager"

    def _flags(self, port: int) -> list[str]:
        return [
            f"--config.file={self.config_file}",
            f"--storage.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
