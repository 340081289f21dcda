"""Lines that are there whole or not at all."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from tailwatch.files import append_line


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    """On a full disk appending fails and leaves no part of the line for the next one to join."""
    path = tmp_path / "log"
    append_line(path, b"first\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            append_line(path, b"second\n", durable=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.ENOSPC
    append_line(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"
