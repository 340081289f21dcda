"""TLS, client certificates and users: who is let in, and what a change of the file does."""

from __future__ import annotations

import base64
import http.client
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from tailwatch.agents.server import AgentServer, prefers_openmetrics
from tailwatch.agents.web import WebConfig
from tailwatch.errors import UsageError
from tailwatch.exposition import OPENMETRICS_TYPE, Snapshot

PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users:\n  prometheus: {HASH}\n"


def openssl(folder: Path, *words: str) -> None:
    """Run openssl in a folder."""
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates of a server, of a client, and of somebody else."""
    folder = tmp_path_factory.mktemp("keys")
    make = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for ca in ("ca", "strangers"):
        openssl(folder, *make, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
    for name, signer in (("server", "ca"), ("client", "ca"), ("stranger", "strangers")):
        (folder / f"{name}.ext").write_text("subjectAltName=DNS:localhost,DNS:" + name)
        openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj",
                f"/CN={name}")  # fmt: skip
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{signer}.pem", "-CAkey",
                f"{signer}.key", "-CAcreateserial", "-out", f"{name}.pem", "-extfile",
                f"{name}.ext")  # fmt: skip
    return folder


class Served:
    """A server with a file, and a client of it."""

    def __init__(self, file: Path, keys: Path) -> None:
        self.file = file
        self.keys = keys
        self.server = AgentServer("127.0.0.1:0", web_config=file)
        self.server.publish(b"a 1\n")

    def get(
        self, *, user: str = "", password: str = "", tls: bool = False, client: str = ""
    ) -> http.client.HTTPResponse:
        """Return the answer of /metrics."""
        host, port = self.server.address.split(":")
        connection: http.client.HTTPConnection
        if tls:
            context = ssl.create_default_context(cafile=str(self.keys / "ca.pem"))
            context.check_hostname = False
            if client:
                context.load_cert_chain(self.keys / f"{client}.pem", self.keys / f"{client}.key")
            connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=10)
        else:
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
        headers = {}
        if user:
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    def write(self, text: str) -> None:
        """Replace the file."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.file)


@pytest.fixture
def served(tmp_path: Path, keys: Path) -> Iterator[Served]:
    """A server whose file asks for nothing yet."""
    file = tmp_path / "web.yml"
    file.write_text("{}\n")
    made = Served(file, keys)
    yield made
    made.server.close()


def tls(keys: Path, *more: str) -> str:
    """Return a file that asks for TLS."""
    lines = [f"cert_file: {keys / 'server.pem'}", f"key_file: {keys / 'server.key'}", *more]
    return "tls_server_config:\n" + "".join(f"  {line}\n" for line in lines)


def test_users_and_passwords(served: Served) -> None:
    """Only a user with his password is let in, the first time and every other time."""
    served.write(USERS)
    for _ in range(2):
        assert served.get().status == 401
        assert served.get(user="prometheus", password="wrong").status == 401
        assert served.get(user="nobody", password=PASSWORD).status == 401
        assert served.get(user="prometheus", password=PASSWORD).status == 200
    assert served.get().getheader("WWW-Authenticate", "").startswith("Basic")


def test_change_of_password_counts_at_once(served: Served) -> None:
    """The old password is refused as soon as the file has a new one."""
    served.write(USERS)
    assert served.get(user="prometheus", password=PASSWORD).status == 200
    fresh = bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode()
    served.write(f"basic_auth_users:\n  prometheus: {fresh}\n")
    assert served.get(user="prometheus", password=PASSWORD).status == 401
    assert served.get(user="prometheus", password="new").status == 200


def test_file_that_became_wrong_lets_nobody_in(served: Served) -> None:
    """A broken file closes the door, and a repaired one opens it."""
    served.write(USERS)
    assert served.get(user="prometheus", password=PASSWORD).status == 200
    served.write("basic_auth_users: [\n")
    with pytest.raises((http.client.HTTPException, OSError)):
        served.get(user="prometheus", password=PASSWORD)
    served.write(USERS)
    assert served.get(user="prometheus", password=PASSWORD).status == 200


def test_tls(served: Served, keys: Path) -> None:
    """With a certificate the server speaks TLS only."""
    served.write(tls(keys))
    assert served.get(tls=True).status == 200
    with pytest.raises((http.client.HTTPException, OSError)):
        served.get()


def test_client_certificates(served: Served, keys: Path) -> None:
    """Who has no certificate of the CA, or not one of the names, is refused."""
    asked = tls(
        keys,
        "client_auth_type: RequireAndVerifyClientCert",
        f"client_ca_file: {keys / 'ca.pem'}",
        "client_allowed_sans: [client]",
    )
    served.write(asked)
    assert served.get(tls=True, client="client").status == 200
    for client in ("", "stranger", "server"):
        with pytest.raises((http.client.HTTPException, OSError)):
            served.get(tls=True, client=client)


def test_new_certificate_is_used(served: Served, keys: Path, tmp_path: Path) -> None:
    """A certificate that is renewed under its name is served from the next connection on."""
    for kind in ("pem", "key"):
        (tmp_path / f"live.{kind}").write_bytes((keys / f"server.{kind}").read_bytes())
    served.write("tls_server_config:\n  cert_file: live.pem\n  key_file: live.key\n")
    assert served.get(tls=True).status == 200
    for kind in ("pem", "key"):
        fresh = tmp_path / f"fresh.{kind}"
        fresh.write_bytes((keys / f"stranger.{kind}").read_bytes())
        os.replace(fresh, tmp_path / f"live.{kind}")
    with pytest.raises(ssl.SSLCertVerificationError):
        served.get(tls=True)


def test_headers(served: Served) -> None:
    """Security headers of the file are in every answer."""
    served.write("http_server_config:\n  headers:\n    X-Frame-Options: deny\n")
    assert served.get().getheader("X-Frame-Options") == "deny"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "expected YAML"),
        ("- 1", "the file: expected a table"),
        ("tls: {}", "the file: 'tls', expected basic_auth_users"),
        ("tls_server_config: {cert_file: a}", "expected key_file"),
        ("tls_server_config: {cert_file: a, key_file: b}", "No such file"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "min_version"),
        ("tls_server_config: {cipher_suites: []}", "'cipher_suites', expected"),
        ("basic_auth_users: {a: plain}", "a: expected a bcrypt hash"),
        ("basic_auth_users: [a]", "expected user: hash"),
        ("http_server_config: {http2: true}", "'http2', expected headers"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    """What is not known, or cannot be, is one line that names the file; nothing is ignored."""
    file = tmp_path / "web.yml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        WebConfig(file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", True),
        ("application/openmetrics-text;version=0.0.1;q=0.9,text/plain;version=0.0.4;q=0.8", False),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.1", False),
        ("application/openmetrics-text;q=x", False),
    ],
)
def test_format_is_the_clients_choice(accept: str, openmetrics: bool) -> None:
    """OpenMetrics is for a client that likes it better than text."""
    assert prefers_openmetrics(accept) == openmetrics


def test_both_formats_are_served() -> None:
    """One snapshot is served in the format asked for, with its content type."""
    snapshot = Snapshot()
    snapshot.add("tailwatch_node_records_total", 3, node="n")
    server = AgentServer("127.0.0.1:0")
    server.publish(lambda: snapshot)
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
    answer = connection.getresponse()
    assert answer.getheader("Content-Type") == OPENMETRICS_TYPE
    assert answer.read().endswith(b'tailwatch_node_records_total{node="n"} 3\n# EOF\n')
    connection.request("GET", "/metrics")
    assert b"# TYPE tailwatch_node_records_total counter" in connection.getresponse().read()
    connection.close()
    server.close()
