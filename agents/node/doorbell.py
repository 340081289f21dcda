"""The socket ranks ring when they left a record; a hint to look, never the data.

Contract: `wait` returns when somebody rang or the time is over; a ring that did not fit the queue
costs nothing, because the records lie in the rings. Only one agent at a time owns the path: a
socket file left by a dead one is replaced, one that a living agent answers on is refused.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from pathlib import Path

from tailwatch.errors import UsageError

_RECEIVE_BYTES = 1 << 20
# More than the queue holds; whoever rings without end must not keep the agent at the door.
_MOST_RINGS = 4096
# sockaddr_un holds 108 bytes with the final NUL; ranks with a longer path would ring in vain.
_LONGEST_PATH = 107
_QUEUE_LENGTH = Path("/proc/sys/net/unix/max_dgram_qlen")


class Doorbell:
    """Owns a datagram socket at `path` until it is closed; raises UsageError when it cannot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if len(str(path).encode()) > _LONGEST_PATH:
            raise UsageError(
                f"{path}: expected a path of at most {_LONGEST_PATH} bytes", source="--doorbell"
            )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        try:
            self._refuse_if_answered()
            if path.is_socket():
                path.unlink()
            self._socket.bind(str(path))
            self._inode = path.stat().st_ino
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"{path}: {error.strerror}; expected a path for a socket", source="--doorbell"
            ) from error

    def _refuse_if_answered(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(self._path))
            except OSError:
                return
        self._socket.close()
        raise UsageError(f"{self._path}: another agent listens there", source="--doorbell")

    def wait(self, timeout: float, gather: float = 0.01) -> bool:
        """Wait for a ring and then `gather` seconds for more of them; return whether one came."""
        readable, _, _ = select.select([self._socket], [], [], timeout)
        if not readable:
            return False
        time.sleep(gather)
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_RINGS):
                self._socket.recv(16)
        return True

    def close(self) -> None:
        """Close the socket and remove its path, unless somebody else has taken the path over."""
        self._socket.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()


def queue_length() -> int | None:
    """Return how many datagrams the kernel queues for a socket; None when it does not say."""
    try:
        return int(_QUEUE_LENGTH.read_text())
    except (OSError, ValueError):
        return None
