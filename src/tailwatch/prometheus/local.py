"""A server of the Prometheus family on 127.0.0.1, for one run: what its members have in common.

Contract: configuration, storage and log lie in one directory; nothing is shared with another
server on the machine. The process carries the run's token and dies with this one.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from tailwatch.files import write_durably
from tailwatch.processes import Process, StartError, spawn, start_listening
from tailwatch.tools import find_tool

STOP_SECONDS = 5.0


def status_of(port: int, path: str, *, timeout: float = 2.0) -> int | None:
    """Return the HTTP status of GET `path` on 127.0.0.1, or None when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class LocalServer:
    """A server, started by `start` or by entering it as a context.

    Args:
        directory: where the configuration, data/ and the log go; made if it is not there.
        token: the run's token.
        config: the content of the configuration file.
        port: listen here; by default on any free port.
    """

    program: ClassVar[str]

    def __init__(
        self, directory: Path, *, token: str, config: dict[str, Any], port: int | None = None
    ) -> None:
        self.directory = directory
        self.config_file = directory / f"{self.program}.yml"
        self.log = directory / f"{self.program}.log"
        self._token = token
        self._config = config
        self._port = port
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The running process."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def address(self) -> str:
        """Where it listens: `127.0.0.1:PORT`."""
        assert self._process is not None, "not started"
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """Its URL, without a final slash."""
        return f"http://{self.address}"

    def _flags(self, port: int) -> list[str]:
        raise NotImplementedError

    def _check(self) -> None:
        """Raise UsageError when the configuration that was just written is no good."""

    def start(self, *, timeout: float = 30.0) -> None:
        """Write the configuration, check it, start the server and wait until it is ready.

        Started again after `stop` it listens on the same port and keeps its data.

        Raises:
            UsageError: there is no binary, or the configuration is refused.
            StartError: it did not come up within `timeout` seconds; with its log's last line.
        """
        binary = find_tool(self.program)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            # JSON is YAML, and needs no other library.
            write_durably(self.config_file, msgspec.json.format(msgspec.json.encode(self._config)))
            self._check()
            self._process, self._port = start_listening(
                lambda port: spawn(
                    [binary, *self._flags(port)],
                    log=self.log,
                    token=self._token,
                    name=self.program,
                ),
                lambda port: status_of(port, "/-/ready") == 200,
                f"{self.program} is ready",
                port=self._port,
                timeout=timeout,
            )
        except OSError as error:
            raise StartError(f"{self.program} cannot be started: {error}") from error

    def stop(self) -> None:
        """End it; harmless when it has ended or was never started."""
        if self._process is not None:
            self._process.terminate(STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
