"""The Alertmanager configuration that goes with the rules: one receiver, Watchdog kept quiet.

Contract: alerts are grouped so that each fault at each rank is its own notification, firing and
resolved; `severity="none"` goes nowhere unless its own receiver is named. A game day runs this
very configuration, only faster than a cluster does.
"""

from __future__ import annotations

from typing import Any

from tailwatch.alerts.rules import duration


def alertmanager_config(webhook_url: str, *, interval: float = 1.0) -> dict[str, Any]:
    """Return the content of alertmanager.yml; written as JSON it is valid YAML.

    Args:
        webhook_url: where notifications are posted to.
        interval: seconds between evaluations of the rules; scales how long a group waits to be
            sent.
    """
    return {
        "route": {
            "receiver": "webhook",
            "group_by": ["alertname", "run", "node", "rank", "instance"],
            "group_wait": duration(0.5 * interval),
            "group_interval": duration(interval),
            "repeat_interval": "1h",
            "routes": [{"receiver": "none", "matchers": ['severity="none"']}],
        },
        "receivers": [
            {"name": "none"},
            {
                "name": "webhook",
                "webhook_configs": [{"url": webhook_url, "send_resolved": True}],
            },
        ],
    }
