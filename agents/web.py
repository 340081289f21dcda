"""TLS, client certificates and users of an agent's server, in exporter-toolkit's file format.

Contract: the file (and the certificate, key and CA it names) is read again when it has changed, at
the next connection. A file that is wrong at the start is bad usage; one that becomes wrong later
lets nobody in until it is right again, and says so once in the log. Of `tls_server_config` it knows
cert_file, key_file, client_auth_type (NoClientCert, VerifyClientCertIfGiven,
RequireAndVerifyClientCert), client_ca_file, client_allowed_sans, min_version and max_version; of
`http_server_config` headers; and `basic_auth_users` with bcrypt hashes. Anything else is refused
rather than ignored. Needs the extra `web`.

Cost: up to four stats a connection; a bcrypt check (some 50 ms) for a password not seen before.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tailwatch.agents.service import log
from tailwatch.errors import UsageError

_FLAG = "--web.config.file"
_TLS_KEYS = {
    "cert_file", "key_file", "client_auth_type", "client_ca_file", "client_allowed_sans",
    "min_version", "max_version",
}  # fmt: skip
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_HEADERS = {
    "Content-Security-Policy", "Strict-Transport-Security", "X-Content-Type-Options",
    "X-Frame-Options", "X-XSS-Protection",
}  # fmt: skip
_MOST_REMEMBERED = 128


class WebSettings(NamedTuple):
    """One reading of the file; `files` are what a change of makes it read again."""

    context: ssl.SSLContext | None = None
    allowed_sans: frozenset[str] = frozenset()
    users: dict[str, bytes] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    files: tuple[Path, ...] = ()


class WebConfig:
    """The file at `path`; raises UsageError when it is wrong or the extra `web` is missing."""

    def __init__(self, path: Path) -> None:
        try:
            import bcrypt
            import yaml
        except ImportError as error:
            raise UsageError(
                f"needs the package {error.name}; install tailwatch[web]", source=_FLAG
            ) from error
        self._check: Callable[[bytes, bytes], bool] = bcrypt.checkpw
        self._unknown_user: bytes = bcrypt.hashpw(secrets.token_bytes(16), bcrypt.gensalt(10))
        self._parse: Callable[[str], Any] = yaml.safe_load
        self._path = path
        self._lock = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, bool] = OrderedDict()
        self._settings: WebSettings | None = self._read()
        self._stamp = self._stamp_of(self._settings.files)

    def settings(self) -> WebSettings | None:
        """Return the settings as of now; None while the file is wrong."""
        with self._lock:
            files = self._settings.files if self._settings else (self._path,)
            stamp = self._stamp_of(files)
            # While it is wrong any of the files it names may have been what was wrong.
            if stamp != self._stamp or self._settings is None:
                try:
                    self._settings = self._read()
                    log(f"{self._path}: read again")
                except UsageError as error:
                    if self._settings is not None or stamp != self._stamp:
                        log(f"{error}; nobody is let in")
                    self._settings = None
                files = self._settings.files if self._settings else (self._path,)
                self._stamp = self._stamp_of(files)
            return self._settings

    @staticmethod
    def _stamp_of(files: tuple[Path, ...]) -> tuple[tuple[int, ...] | None, ...]:
        found: list[tuple[int, ...] | None] = []
        for file in files:
            try:
                status = os.stat(file)
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def _read(self) -> WebSettings:
        try:
            content = self._parse(self._path.read_text())
        except Exception as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise UsageError(f"{reason}; expected YAML", source=self._path) from error
        content = self._table(content, "the file", {
            "tls_server_config", "http_server_config", "basic_auth_users",
        })  # fmt: skip
        http = self._table(content.get("http_server_config"), "http_server_config", {"headers"})
        headers = self._table(http.get("headers"), "headers", _HEADERS)
        users = content.get("basic_auth_users")
        files, context, sans = [self._path], None, frozenset[str]()
        if content.get("tls_server_config"):
            context, named, sans = self._tls(content["tls_server_config"])
            files += named
        return WebSettings(
            context=context,
            allowed_sans=sans,
            users=self._users(users) if users else None,
            headers=tuple((name, str(value)) for name, value in headers.items()),
            files=tuple(files),
        )

    def _table(self, value: object, name: str, keys: set[str]) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise UsageError(f"{name}: expected a table", source=self._path)
        for key in value:
            if key not in keys:
                expected = ", ".join(sorted(keys))
                raise UsageError(f"{name}: {key!r}, expected {expected}", source=self._path)
        return value

    def _users(self, users: object) -> dict[str, bytes]:
        if not isinstance(users, dict):
            raise UsageError("basic_auth_users: expected user: hash", source=self._path)
        for user, hashed in users.items():
            if not (isinstance(hashed, str) and hashed.startswith(("$2a$", "$2b$", "$2y$"))):
                raise UsageError(
                    f"basic_auth_users: {user}: expected a bcrypt hash", source=self._path
                )
        return {str(user): hashed.encode() for user, hashed in users.items()}

    def _tls(self, value: object) -> tuple[ssl.SSLContext, list[Path], frozenset[str]]:
        table = self._table(value, "tls_server_config", _TLS_KEYS)
        for key in ("cert_file", "key_file"):
            if not isinstance(table.get(key), str):
                raise UsageError(f"tls_server_config: expected {key}", source=self._path)
        base = self._path.parent
        files = [base / table[key] for key in ("cert_file", "key_file")]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self._one_of(table, "min_version", "TLS12", _VERSIONS)
        context.maximum_version = self._one_of(table, "max_version", "TLS13", _VERSIONS)
        try:
            context.load_cert_chain(files[0], files[1])
            if "client_ca_file" in table:
                files.append(base / table["client_ca_file"])
                context.load_verify_locations(files[2])
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"tls_server_config: {error.strerror or error}; expected PEM files that fit",
                source=self._path,
            ) from error
        context.verify_mode = self._one_of(table, "client_auth_type", "NoClientCert", _CLIENTS)
        if context.verify_mode != ssl.CERT_NONE and len(files) < 3:
            raise UsageError("tls_server_config: expected client_ca_file", source=self._path)
        return context, files, frozenset(map(str, table.get("client_allowed_sans") or ()))

    def _one_of(self, table: dict[str, Any], key: str, default: str, known: dict[str, Any]) -> Any:
        value = table.get(key, default)
        if value not in known:
            raise UsageError(
                f"tls_server_config: {key}: {value!r}, expected one of {', '.join(known)}",
                source=self._path,
            )
        return known[value]

    def lets_in(self, users: dict[str, bytes], authorization: str) -> bool:
        """Whether an Authorization header names a user and his password."""
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        hashed = users.get(user.decode(errors="replace"))
        given = hmac.digest(self._key, (hashed or b"") + b"\0" + user + b"\0" + password, "sha256")
        with self._lock:
            found = self._known.get(given)
            if found is None:
                # An unknown user takes as long as a wrong password.
                found = self._check(password[:72], hashed or self._unknown_user)
                found = found and hashed is not None and bool(colon)
                self._known[given] = found
                while len(self._known) > _MOST_REMEMBERED:
                    self._known.popitem(last=False)
        return found


def san_allowed(certificate: dict[str, Any] | None, allowed: frozenset[str]) -> bool:
    """Whether a client certificate has one of the names; true when none are asked for."""
    if not allowed:
        return True
    names = (certificate or {}).get("subjectAltName", ())
    return any(value in allowed for _, value in names)
