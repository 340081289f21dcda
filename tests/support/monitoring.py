"""A page of metrics that a test can change while a real Prometheus scrapes it."""

from __future__ import annotations

import http.server


class ExpositionHandler(http.server.BaseHTTPRequestHandler):
    """Serves the text that its server carries."""

    def do_GET(self) -> None:
        """Answer one scrape."""
        body = getattr(self.server, "text", "").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Exposition:
    """One gauge, `lateness_seconds`, by rank."""

    def __init__(self, server: http.server.ThreadingHTTPServer) -> None:
        self.address = f"127.0.0.1:{server.server_address[1]}"
        self._server = server
        self.show({})

    def show(self, late: dict[str, float]) -> None:
        """Show these values by rank from now on."""
        lines = ["# TYPE lateness_seconds gauge"]
        for rank, value in late.items():
            lines.append(f'lateness_seconds{{run="r1",node="n0",rank="{rank}"}} {value}')
        self._server.text = "\n".join(lines) + "\n"  # type: ignore[attr-defined]
