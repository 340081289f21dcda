"""The Alertmanager configuration that goes with the rules: one receiver, Watchdog kept quiet.

Contract: alerts are grouped so that each fault at each rank is its own notification, firing and
resolved; `severity="none"` goes nowhere unless its own receiver is named.
"""

from __future__ import annotations

import json

from tailwatch.alerts.rules import duration


def alertmanager_config(webhook_url: str, *, interval: float = 1.0) -> str:
    """Return the YAML; `interval` in seconds scales how long a group waits to be sent."""
    return f"""route:
  receiver: webhook
  group_by: [alertname, run, node, rank, instance]
  group_wait: {duration(0.5 * interval)}
  group_interval: {duration(interval)}
  repeat_interval: 1h
  routes:
    - receiver: none
      matchers: ['severity="none"']
receivers:
  - name: none
  - name: webhook
    webhook_configs:
      - url: {json.dumps(webhook_url)}
        send_resolved: true
"""
