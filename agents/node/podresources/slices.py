"""What DRA drivers say of the devices they gave names of their own: the node's ResourceSlices.

Contract: `Slices` is a part that asks the API server of the cluster, with the pod's own service
account, and only while somebody waits for a name it does not know; a name nobody publishes is asked
for again after a minute. It may not be allowed to (`HTTP_403`), and then the devices stay unmapped.
It needs the right to list `resourceslices.resource.k8s.io` and nothing else.

Cost: nothing while all names are known; else one request a minute at most, of the slices of this
node only.
"""

from __future__ import annotations

import http.client
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from tailwatch.agents.node.base import SourceError
from tailwatch.exposition import Snapshot

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGAIN_SECONDS = 60.0
_TIMEOUT_SECONDS = 3.0
_MOST_BYTES = 16 << 20
_VERSIONS = ("v1", "v1beta2", "v1beta1")


class DeviceName(NamedTuple):
    """How a claim names a device: the driver, its pool, the device in it."""

    driver: str
    pool: str
    device: str


class Published(NamedTuple):
    """What a driver says of a device; "" where it does not say."""

    uuid: str
    pci: str
    rdma: str
    interface: str


class _Value(msgspec.Struct):
    string: str | None = None


class _Basic(msgspec.Struct):
    attributes: dict[str, _Value] = {}


class _Device(msgspec.Struct):
    name: str
    attributes: dict[str, _Value] = {}
    # Where version v1beta1 has them.
    basic: _Basic = msgspec.field(default_factory=_Basic)


class _Pool(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    driver: str
    pool: _Pool
    devices: list[_Device] = []


class _Slice(msgspec.Struct):
    spec: _Spec


class _SliceList(msgspec.Struct):
    items: list[_Slice] = []


def parse_slices(data: bytes) -> dict[DeviceName, Published]:
    """Return the devices of a ResourceSliceList; raise ValueError when it is none."""
    listed = msgspec.json.decode(data, type=_SliceList)
    return {
        DeviceName(of.spec.driver, of.spec.pool.name, device.name): _published(device)
        for of in listed.items
        for device in of.spec.devices
    }


def _published(device: _Device) -> Published:
    said = dict(_attributes(device))
    return Published(
        uuid=said.get("uuid", ""),
        pci=said.get("pcibusid") or said.get("pciaddress", ""),
        rdma=said.get("rdmadevice", ""),
        interface=said.get("ifname", ""),
    )


def _attributes(device: _Device) -> Iterator[tuple[str, str]]:
    # Drivers differ in whose domain they put a name under, and mean the same by it.
    for name, value in {**device.basic.attributes, **device.attributes}.items():
        if value.string:
            yield name.rpartition("/")[2].lower(), value.string


class Slices:
    """The part that asks the API server.

    Attributes:
        wanted: the names somebody waits for.
        devices: what is known.
    """

    key = "slices"

    def __init__(self, node: str, address: str, account: Path = ACCOUNT) -> None:
        self._node = node
        self._address = address
        self._account = account
        self._not_before = 0.0
        self.wanted: frozenset[DeviceName] = frozenset()
        self.devices: dict[DeviceName, Published] = {}

    @classmethod
    def of_cluster(cls, node: str, account: Path = ACCOUNT) -> Slices | None:
        """Return the part for the cluster this process runs in; None outside of one."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            return None
        return cls(node, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", account)

    def read(self) -> None:
        now = time.monotonic()
        if now < self._not_before or self.wanted <= self.devices.keys():
            return
        self._not_before = now + AGAIN_SECONDS
        try:
            self.devices = parse_slices(self._list())
        except msgspec.MsgspecError as error:
            raise SourceError("MALFORMED", f"the API server's answer: {error}") from error

    def _list(self) -> bytes:
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(
            self._address, timeout=_TIMEOUT_SECONDS, context=context
        )
        query = urlencode({"fieldSelector": f"spec.nodeName={self._node}"})
        token = (self._account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        status = 404
        try:
            for version in _VERSIONS:
                path = f"/apis/resource.k8s.io/{version}/resourceslices?{query}"
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                body, status = answer.read(_MOST_BYTES + 1), answer.status
                if status != 404:
                    break
        except http.client.HTTPException as error:
            raise SourceError("MALFORMED", f"the API server's answer: {error!r}") from error
        finally:
            connection.close()
        if status != 200:
            raise SourceError(f"HTTP_{status}", f"the API server: {status} for resourceslices")
        if len(body) > _MOST_BYTES:
            raise SourceError("TOO_LARGE", f"the API server: over {_MOST_BYTES} bytes")
        return body

    def add_to(self, snapshot: Snapshot) -> None:
        """Add nothing: what is known goes into the mapping."""

    def close(self) -> None:
        """Do nothing: no connection stays open."""
