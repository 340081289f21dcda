"""Devices of claims by the ResourceSlices of their drivers, from an API server over TLS."""

from __future__ import annotations

import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import parse
from support.kubelet import FakeKubelet, claim, pod
from tailwatch.agents.node.base import NodeConfig, SourceError
from tailwatch.agents.node.collectors.pods import PodsCollector
from tailwatch.agents.node.podresources import slices as module
from tailwatch.agents.node.podresources.slices import (
    DeviceName,
    Published,
    Slices,
    parse_slices,
)
from tailwatch.exposition import Snapshot

GPU = "GPU-00000000-0000-0000-0000-00000000000a"
MIG = "MIG-00000000-0000-0000-0000-00000000000b"


def device(name: str, **attributes: str) -> dict[str, Any]:
    """Return a device of a slice; `__` in the name of an attribute stands for `/`, `_` for `.`."""
    said: dict[str, Any] = {"numa": {"int": 1}, "rdma": {"bool": True}}
    for key, text in attributes.items():
        said[key.replace("__", "/").replace("_", ".")] = {"string": text}
    return {"name": name, "attributes": said}


def slice_of(driver: str, *devices: dict[str, Any], pool: str = "node-a") -> dict[str, Any]:
    """Return a ResourceSlice."""
    spec = {"driver": driver, "nodeName": "n", "pool": {"name": pool}, "devices": list(devices)}
    return {"metadata": {"name": "x"}, "spec": spec}


class Api:
    """An API server that knows ResourceSlices of one version only.

    Attributes:
        items: the slices there are.
        status: what it answers with; 200 unless it is set.
        asked: the paths it was asked for.
    """

    def __init__(self, folder: Path, version: str = "v1") -> None:
        self.items: list[dict[str, Any]] = []
        self.status = 200
        self.asked: list[str] = []
        self.account = folder / "account"
        self.account.mkdir(parents=True)
        (self.account / "token").write_text("a-token\n")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", folder / "key.pem", "-out", self.account / "ca.crt",
             "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                where = urlsplit(self.path)
                api.asked.append(where.path)
                assert self.headers["Authorization"] == "Bearer a-token"
                assert parse_qs(where.query) == {"fieldSelector": ["spec.nodeName=n"]}
                known = where.path == f"/apis/resource.k8s.io/{version}/resourceslices"
                body = api.body(version)
                self.send_response(api.status if known else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.account / "ca.crt", folder / "key.pem")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def body(self, version: str) -> bytes:
        """Return the list as that version has it."""
        items = json.loads(json.dumps(self.items))
        if version == "v1beta1":
            for one in (device for item in items for device in item["spec"]["devices"]):
                one["basic"] = {"attributes": one.pop("attributes")}
        return json.dumps({"kind": "ResourceSliceList", "items": items}).encode()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(params=["v1", "v1beta1"])
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    """An API server of today, and one of before."""
    made = Api(tmp_path, request.param)
    yield made
    made.close()


class Agent:
    """A collector in a pod of the cluster, and the kubelet it asks."""

    def __init__(self, api: Api, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        host, port = api.address.split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        (root / "kubelet").mkdir()
        self.kubelet = FakeKubelet(root / "kubelet" / "k.sock")
        self.sysfs, self.procfs = root / "sys", root / "proc"
        config = NodeConfig(
            node="n", podresources=self.kubelet.socket, sysfs=self.sysfs, procfs=self.procfs
        )
        self.collector = PodsCollector(config, pod_logs=root / "pods", account=api.account)
        self.asks, self.slices = self.collector.discover()

    def read(self) -> dict[str, str]:
        """Read kubelet, the slices and kubelet again; return the device of each pod."""
        for part in (self.asks, self.slices, self.asks):
            part.read()
        snapshot = Snapshot()
        self.asks.add_to(snapshot)
        found = {}
        for name, labels in parse(snapshot.render()):
            have = dict(labels)
            if name in ("tailwatch_gpu_pod_info", "tailwatch_efa_pod_info"):
                found[have["pod"]] = (
                    have.get("device") or have.get("uuid") or have.get("mig_uuid", "")
                )
        return found

    def unmapped(self) -> float:
        """Return how many devices are mapped to nothing."""
        snapshot = Snapshot()
        self.asks.add_to(snapshot)
        name = "tailwatch_pod_devices_unmapped"
        return sum(v for (of, _), v in parse(snapshot.render()).items() if of == name)

    def close(self) -> None:
        """End both."""
        self.asks.close()
        self.kubelet.stop()


@pytest.fixture
def agent(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """A collector in a pod of the cluster of that API server."""
    made = Agent(api, tmp_path, monkeypatch)
    yield made
    made.close()


def test_claims_are_resolved_by_what_drivers_publish(api: Api, agent: Agent) -> None:
    """GPUs, MIG devices and RDMA devices of any name are mapped, and asked for once."""
    sysfs = agent.sysfs
    (sysfs / "bus/pci/devices/0000:4f:00.0/infiniband/rdmap79s0").mkdir(parents=True)
    (sysfs / "class/infiniband/rdmap80s0").mkdir(parents=True)
    (sysfs / "class/net/eth3/device/infiniband/rdmap81s0").mkdir(parents=True)
    files = agent.procfs / "driver/nvidia/gpus/0000:3b:00.0"
    files.mkdir(parents=True)
    (files / "information").write_text(f"GPU UUID: \t {GPU[:-1]}c\nDevice Minor: \t 3\n")
    gpus = slice_of(
        "gpu.nvidia.com",
        device("some-gpu", gpu_nvidia_com__uuid=GPU),
        device("gpu-0-mig-1g10gb-19-0", uuid=MIG),
        device("by-address", resource_kubernetes_io__pciBusID="0000:3b:00.0"),
    )
    nics = slice_of(
        "dra.net",
        device("normalized-a", dra_net__pciAddress="0000:4f:00.0"),
        device("normalized-b", dra_net__rdmaDevice="rdmap80s0"),
        device("normalized-c", dra_net__ifName="eth3"),
        device("normalized-d", dra_net__pciAddress="../../../etc"),
    )
    api.items = [gpus, nics, slice_of("dra.net", device("normalized-a"), pool="node-b")]
    agent.kubelet.pods = [
        *(pod(d["name"], claim("gpu.nvidia.com", d["name"])) for d in gpus["spec"]["devices"]),
        *(pod(d["name"], claim("dra.net", d["name"])) for d in nics["spec"]["devices"]),
    ]
    assert agent.read() == {
        "some-gpu": GPU,
        "gpu-0-mig-1g10gb-19-0": MIG,
        "by-address": f"{GPU[:-1]}c",
        "normalized-a": "rdmap79s0",
        "normalized-b": "rdmap80s0",
        "normalized-c": "rdmap81s0",
    }
    assert agent.unmapped() == 1
    asked = len(api.asked)
    assert asked in (1, 3)
    agent.read()
    assert len(api.asked) == asked


def test_nobody_is_asked_while_every_name_is_known(api: Api, agent: Agent) -> None:
    """Names that say it themselves cost the API server nothing."""
    (agent.sysfs / "class/infiniband/rdmap80s0").mkdir(parents=True)
    agent.kubelet.pods = [pod("a", claim("dra.net", "rdmap80s0"))]
    assert agent.read() == {"a": "rdmap80s0"}
    assert api.asked == []


def test_name_that_nobody_publishes_is_asked_for_once_a_minute(
    api: Api, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown name stays unmapped, and is looked for again after a while."""
    agent.kubelet.pods = [pod("a", claim("gpu.nvidia.com", "late"))]
    assert agent.read() == {}
    asked = len(api.asked)
    api.items = [slice_of("gpu.nvidia.com", device("late", uuid=GPU))]
    assert agent.read() == {}
    assert len(api.asked) == asked
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    again = Slices("n", api.address, api.account)
    again.wanted = frozenset({DeviceName("gpu.nvidia.com", "node-a", "late")})
    again.read()
    assert again.devices == {
        DeviceName("gpu.nvidia.com", "node-a", "late"): Published(GPU, "", "", "")
    }


def test_refusal_is_named_and_costs_no_mapping(api: Api, agent: Agent) -> None:
    """Without the right to list slices that part is down; what else is known stays."""
    (agent.sysfs / "class/infiniband/rdmap80s0").mkdir(parents=True)
    agent.kubelet.pods = [
        pod("a", claim("dra.net", "rdmap80s0")),
        pod("b", claim("gpu.nvidia.com", "some-gpu")),
    ]
    api.status = 403
    with pytest.raises(SourceError) as refused:
        agent.read()
    assert refused.value.code == "HTTP_403"
    agent.asks.read()
    assert agent.unmapped() == 1


def test_outside_of_a_cluster_there_is_nobody_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an API server in the environment, or without an account, there is no such part."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "token").write_text("t")
    assert Slices.of_cluster("n", tmp_path) is None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert Slices.of_cluster("n", tmp_path / "none") is None
    assert Slices.of_cluster("n", tmp_path) is not None


@given(st.binary(max_size=200))
def test_nonsense_is_a_value_error(data: bytes) -> None:
    """Bytes that are no list of slices raise ValueError and nothing else."""
    try:
        assert isinstance(parse_slices(data), dict)
    except ValueError:
        return
