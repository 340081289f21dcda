"""A watched run in small: an exposition that a test can change, and the real parts around it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from support.monitoring import Exposition, ExpositionHandler


@pytest.fixture
def exposition() -> Iterator[Exposition]:
    """A /metrics page with one gauge."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ExpositionHandler)
    page = Exposition(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield page
    server.shutdown()
    thread.join()
    server.server_close()
