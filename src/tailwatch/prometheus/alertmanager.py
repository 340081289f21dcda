"""A real Alertmanager on 127.0.0.1, for one run.

Contract: as `local.LocalServer`; one process, no cluster. A configuration that it refuses is a
`StartError` with the line of its log that says why. Cost: about 40 MB of memory, ready in under
1 s.
"""

from __future__ import annotations

from tailwatch.prometheus.local import LocalServer


class AlertmanagerServer(LocalServer):
    """Alertmanager; `config` is the content of alertmanager.yml."""

    program = "alertmanager"

    def _flags(self, port: int) -> list[str]:
        return [
            f"--config.file={self.config_file}",
            f"--storage.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
