"""The messages of PodResources v1 that say who holds a device (`api.proto` beside this file).

Contract: fields that a later kubelet adds are passed over; a message that is none raises
ValueError. Strings that are not UTF-8 are kept with replacement characters.
"""

from __future__ import annotations

from typing import NamedTuple

from tailwatch.agents.node.podresources.wire import fields, string

LIST = "/v1.PodResourcesLister/List"
GET = "/v1.PodResourcesLister/Get"


class Held(NamedTuple):
    """A device that a container holds.

    `claim` says that it came from a claim; `resource` is then the driver, and `pool` names the pool
    of that driver.
    """

    resource: str
    device: str
    claim: bool
    pool: str = ""


class Container(NamedTuple):
    """One container and its devices."""

    name: str
    devices: tuple[Held, ...]


class Pod(NamedTuple):
    """One pod and its containers; kubelet does not say its uid."""

    namespace: str
    name: str
    containers: tuple[Container, ...]


def parse_list(data: bytes) -> tuple[Pod, ...]:
    """Return the pods of a ListPodResourcesResponse."""
    return tuple(_pod(content) for number, content in fields(data) if number == 1)


def parse_get(data: bytes) -> Pod | None:
    """Return the pod of a GetPodResourcesResponse."""
    found = [_pod(content) for number, content in fields(data) if number == 1]
    return found[-1] if found else None


def get_request(namespace: str, name: str) -> bytes:
    """Return a GetPodResourcesRequest."""
    return string(1, name) + string(2, namespace)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _pod(data: bytes) -> Pod:
    name = namespace = ""
    containers = []
    for number, content in fields(data):
        if number == 1:
            name = _text(content)
        elif number == 2:
            namespace = _text(content)
        elif number == 3:
            containers.append(_container(content))
    return Pod(namespace, name, tuple(containers))


def _container(data: bytes) -> Container:
    name = ""
    devices: list[Held] = []
    for number, content in fields(data):
        if number == 1:
            name = _text(content)
        elif number == 2:
            devices += _devices(content)
        elif number == 5:
            devices += _claims(content)
    return Container(name, tuple(devices))


def _devices(data: bytes) -> list[Held]:
    resource = ""
    ids = []
    for number, content in fields(data):
        if number == 1:
            resource = _text(content)
        elif number == 2:
            ids.append(_text(content))
    return [Held(resource, device, False) for device in ids]


def _claims(data: bytes) -> list[Held]:
    """Return the devices of a DynamicResource; the driver stands in for the resource."""
    found = []
    for number, content in fields(data):
        if number != 4:
            continue
        driver = pool = device = ""
        for inner, value in fields(content):
            if inner == 2:
                driver = _text(value)
            elif inner == 3:
                pool = _text(value)
            elif inner == 4:
                device = _text(value)
        if device:
            found.append(Held(driver, device, True, pool))
    return found
