"""Real Prometheus, Alertmanager and a webhook receiver: start them, ask them, read what came.

Import what you need from its module; this package imports nothing by itself, because the receiver
is a process that must start fast and the query client brings an HTTP library along.

- `server.PrometheusServer`, `alertmanager.AlertmanagerServer`: the real binaries on 127.0.0.1;
- `query.PrometheusClient`: instant and range queries;
- `receiver.start_receiver`: the webhook receiver, a process of its own;
- `tailwatch.notices` (beside this package): what the receiver wrote down, as alerts.
"""
