"""What the source `nvlink` says, by generation, and how links are added up."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.nvml.fixtures import Node, uuid_of, value, values
from tailwatch.agents.node.collectors.nvlink import NvlinkCollector
from tailwatch.agents.node.nvml.links import LinkSums

BYTES, ERRORS, LINKS = (
    f"tailwatch_nvlink_{name}" for name in ("bytes_total", "errors_total", "links")
)


@pytest.mark.parametrize(
    ("profile", "links", "sent"),
    [
        pytest.param("a100", 12, 12 * 1000 * 1024, id="a100: KiB"),
        pytest.param("h100", 18, 18 * 1000 * 1024, id="h100: KiB"),
        pytest.param("b200", 18, 18 * 1_000_000, id="b200: bytes"),
    ],
)
def test_bytes_and_links_of_each_generation(
    gpu_node: Node, profile: str, links: int, sent: int
) -> None:
    """Each generation counts bytes under its own fields and units; ours are bytes."""
    gpu_node.has(profile)
    said = gpu_node.read(gpu_node.collector(NvlinkCollector))
    for direction in ("transmit", "receive"):
        assert value(said, BYTES, uuid=uuid_of(4), direction=direction) == sent
    assert value(said, LINKS, uuid=uuid_of(4), state="active") == links
    assert value(said, LINKS, uuid=uuid_of(4), state="expected") == links


@pytest.mark.parametrize(
    ("profile", "kinds"),
    [
        ("a100", {"crc_flit", "crc_data", "replay", "recovery"}),
        ("h100", {"replay", "recovery", "crc"}),
        ("b200", {"malformed_packet", "recovery_failed", "transmit_discard", "symbol"}),
    ],
)
def test_errors_bear_the_names_of_the_generation(
    gpu_node: Node, profile: str, kinds: set[str]
) -> None:
    """What a generation does not count is absent and not 0."""
    gpu_node.has(profile)
    said = gpu_node.read(gpu_node.collector(NvlinkCollector))
    found = {dict(labels)["kind"] for name, labels in said if name == ERRORS}
    assert kinds <= found
    assert len(found) == (12 if profile == "b200" else len(kinds))


@pytest.mark.parametrize(("profile", "field"), [("h100", 162), ("b200", 214)])
def test_errors_of_single_links_add_up(gpu_node: Node, profile: str, field: int) -> None:
    """An error on one link is one error of its GPU."""
    gpu_node.has(profile, f"set 1 f{field}.7 3", f"set 1 f{field}.8 1")
    said = gpu_node.read(gpu_node.collector(NvlinkCollector))
    kind = "recovery" if profile == "h100" else "recovery_failed"
    assert value(said, ERRORS, uuid=uuid_of(1), kind=kind) == 4
    assert value(said, ERRORS, uuid=uuid_of(0), kind=kind) == 0


@pytest.mark.parametrize("profile", ["h100", "b200"])
def test_series_of_links_only_when_asked_for(gpu_node: Node, profile: str) -> None:
    """Per link there is a series only with the flag, and the links add up to the GPU."""
    gpu_node.has(profile)
    plain = gpu_node.read(gpu_node.collector(NvlinkCollector))
    assert not [name for name, _ in plain if name.startswith("tailwatch_nvlink_link_")]
    gpu_node.config = msgspec.structs.replace(gpu_node.config, nvlink_per_link=True)
    said = gpu_node.read(gpu_node.collector(NvlinkCollector))
    by_link = values(
        said, "tailwatch_nvlink_link_bytes_total", uuid=uuid_of(0), direction="receive"
    )
    assert len(by_link) == 18
    assert sum(by_link) == value(said, BYTES, uuid=uuid_of(0), direction="receive")
    assert sum(by_link) == value(plain, BYTES, uuid=uuid_of(0), direction="receive")
    assert values(said, "tailwatch_nvlink_link_active", uuid=uuid_of(0)) == [1.0] * 18


def test_a_link_that_is_down_and_one_that_sleeps(gpu_node: Node) -> None:
    """A link that is down is missing from the active ones; one that saves power is not."""
    gpu_node.has("h100", "set 2 f165.4 0", "set 2 f165.5 2", instance_type="p5.48xlarge")
    said = gpu_node.read(gpu_node.collector(NvlinkCollector))
    assert value(said, LINKS, uuid=uuid_of(2), state="active") == 17
    assert value(said, LINKS, uuid=uuid_of(2), state="expected") == 18


def test_a_link_whose_state_is_not_known(gpu_node: Node) -> None:
    """Where a link does not tell its state the number of active ones is unknown."""
    gpu_node.has("h100", "set 2 e165.4 999", "fail 2 nvmlDeviceGetNvLinkState 999")
    said = gpu_node.read(gpu_node.collector(NvlinkCollector))
    assert values(said, LINKS, uuid=uuid_of(2), state="active") == []
    assert value(said, LINKS, uuid=uuid_of(3), state="active") == 18


def test_a_card_whose_links_lead_nowhere_expects_none(gpu_node: Node) -> None:
    """Links that were never up, on a node of unknown type, are not missing."""
    gpu_node.has("h100", *(f"set * f165.{link} 0" for link in range(18)))
    said = gpu_node.read(gpu_node.collector(NvlinkCollector))
    assert set(values(said, LINKS, state="active")) == {0}
    assert values(said, LINKS, state="expected") == []


def test_mig_mode_has_no_links_and_no_fault(gpu_node: Node) -> None:
    """In MIG mode NVLink does not apply: no series, and the source is well at every read."""
    gpu_node.has("h100-mig")
    collector = gpu_node.collector(NvlinkCollector)
    assert gpu_node.read(collector, times=3) == {}
    for part in collector.discover():
        part.read()


def test_a_link_that_goes_leaves_no_dent(gpu_node: Node) -> None:
    """A link that can be read no more keeps what it counted: the sum of the GPU does not fall."""
    nvml = gpu_node.has("b200", "time 10")
    collector = gpu_node.collector(NvlinkCollector)
    before = value(gpu_node.read(collector), BYTES, uuid=uuid_of(0), direction="transmit")
    nvml.tell("time 11", "set 0 e202.3 3")
    after = value(gpu_node.read(collector), BYTES, uuid=uuid_of(0), direction="transmit")
    assert before is not None
    assert after == before + 17e9


_READS = st.lists(
    st.dictionaries(st.integers(0, 3), st.integers(0, 9), max_size=4), min_size=1, max_size=12
)


@given(_READS)
def test_sums_fall_only_where_a_link_fell(reads: list[dict[int, int]]) -> None:
    """A sum never falls unless a counter fell, and never rises by more than the counters did."""
    sums = LinkSums()
    last: dict[int, int] = {}
    before: float | None = None
    for read in reads:
        total = sums.add_up({("tx", link): float(n) for link, n in read.items()}).get("tx")
        if any(n < last.get(link, n) for link, n in read.items()):
            last, before = {}, None
        if before is not None:
            grown = sum(n - last[link] for link, n in read.items() if link in last)
            assert total == before + grown
        last |= read
        before = total if total is not None else before
