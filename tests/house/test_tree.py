"""The tree can be given to anybody: nothing in it belongs to one machine."""

from __future__ import annotations

import sys
from pathlib import Path

from support.checkout import ROOT, files

# Joined here so that this file does not hold them itself.
HOSTS = (".".join(("pypi", "org")), ".".join(("proxy", "golang", "org")), "python" + "hosted")
ORDINARY = ("/", "/usr", "/usr/local", "/home", "/tmp")


def _holding(text: str) -> list[str]:
    return [
        name
        for name in files()
        if (ROOT / name).is_file() and text.encode() in (ROOT / name).read_bytes()
    ]


def test_no_path_of_this_machine() -> None:
    """No file names the checkout's folder, a home directory or where this Python lies."""
    for place in {ROOT, Path.home(), Path(sys.base_prefix)}:
        if str(place) not in ORDINARY:
            assert _holding(f"{place}/") == []


def test_no_registry_is_named() -> None:
    """Which registry is asked is for whoever installs to say."""
    for host in HOSTS:
        assert _holding(host) == []


def test_locks_hold_hashes_and_no_address() -> None:
    """Each locked package has a version and a hash, and no address to fetch it from."""
    for lock in ("requirements.lock", "tools/bootstrap.lock", "tools/go.lock"):
        text = (ROOT / lock).read_text()
        assert "://" not in text
        entries = text.replace("\\\n", " ").splitlines()
        assert entries
        for entry in entries:
            assert "==" in entry
            assert "--hash=sha256:" in entry
