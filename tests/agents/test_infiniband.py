"""The source `infiniband`: ports, counters and the many ways in which drivers differ."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import Samples
from support.checkout import ROOT
from support.sources import Reading, labels_of, value
from support.sysfs import Sysfs, write
from tailwatch.agents.node.collectors.infiniband import expected_active
from tailwatch.agents.node.rdma import DeviceSeen, PortSeen
from tailwatch.catalogue.infiniband import PORT_COUNTERS

FIXTURES = ROOT / "tests/agents/fixtures"


@pytest.fixture
def tree(tmp_path: Path) -> Sysfs:
    """An empty tree."""
    return Sysfs(tmp_path / "sys")


@pytest.fixture
def readings() -> Iterator[list[Reading]]:
    """A list; what is in it is closed."""
    made: list[Reading] = []
    yield made
    for reading in made:
        reading.close()


def infiniband(sysfs: Path, readings: list[Reading]) -> Reading:
    """Read the source on a tree."""
    readings.append(Reading(sysfs, "infiniband"))
    return readings[-1]


def test_two_ports_are_two_series(readings: list[Reading]) -> None:
    """Ports are never added up, words of four bytes become bytes, labels have no blank lines."""
    samples = infiniband(FIXTURES / "mlx4-two-ports", readings).samples()
    expected = {
        "1": (8884894436, 106036453180, 3599),
        "2": (9841747136, 106161427560, 3846),
    }
    for port, (received, transmitted, waited) in expected.items():
        labels = {"device": "mlx4_0", "port": port}
        assert value(samples, "tailwatch_infiniband_received_bytes_total", **labels) == received
        name = "tailwatch_infiniband_transmitted_bytes_total"
        assert value(samples, name, **labels) == transmitted
        name = "tailwatch_infiniband_transmit_wait_ticks_total"
        assert value(samples, name, **labels) == waited
        name = "tailwatch_infiniband_port_rate_bytes_per_second"
        assert value(samples, name, **labels) == 5e9
        assert value(samples, "tailwatch_infiniband_port_state", **labels) == 4
        assert value(samples, "tailwatch_infiniband_port_physical_state", **labels) == 5
        info = labels_of(samples, "tailwatch_infiniband_port_info", **labels)
        assert info["link_layer"] == "InfiniBand"
    info = labels_of(samples, "tailwatch_infiniband_device_info")
    assert (info["hca_type"], info["firmware"]) == ("MT4099", "2.31.5050")


def test_omnipath(tmp_path: Path, readings: list[Reading]) -> None:
    """Without hca_type, with blanks in board_id and a comma in a counter's name, all is there."""
    tree = tmp_path / "sys"
    shutil.copytree(FIXTURES / "omnipath-hfi1", tree)
    write(tree / "class/infiniband/hfi1_0/hw_counters/SwLinkUp,32", 7)
    samples = infiniband(tree, readings).samples()
    info = labels_of(samples, "tailwatch_infiniband_device_info", device="hfi1_0")
    assert info["hca_type"] == ""
    assert info["board_id"] == (
        "HPE 100Gb 1-port OP101 QSFP28 x16 PCIe Gen3 with Intel Omni-Path Adapter"
    )
    assert value(samples, "tailwatch_infiniband_received_bytes_total") == 1380366808104
    assert value(samples, "tailwatch_infiniband_transmitted_bytes_total") == 1094233306172
    assert value(samples, "tailwatch_infiniband_received_packets_total") == 638036947
    assert value(samples, "tailwatch_infiniband_multicast_received_packets_total") is None
    name = "tailwatch_infiniband_hw_events_total"
    assert value(samples, name, counter="SwLinkUp,32", port="") == 7


def test_driver_without_counters(tree: Sysfs, readings: list[Reading]) -> None:
    """irdma has no PMA counters, board_id and hca_type: it shows what it has."""
    tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    for index in range(4):
        pci = tree.pci(f"0000:1a:00.{index}", "0000:16:02.0", "0x8086", "0x1889", driver="irdma")
        device = tree.rdma(f"irdma{index}", pci)
        tree.port(device / "ports/1", "4: ACTIVE", "100 Gb/sec (4X EDR)")
        write(device / "ports/1/hw_counters/ip4InOctets", 5)
    samples = infiniband(tree.root, readings).samples()
    assert value(samples, "tailwatch_infiniband_received_bytes_total", device="mlx5_0") is not None
    for index in range(4):
        labels = {"device": f"irdma{index}"}
        assert value(samples, "tailwatch_source_up", **labels) == 1
        assert value(samples, "tailwatch_infiniband_port_state", **labels) == 4
        assert value(samples, "tailwatch_infiniband_received_bytes_total", **labels) is None
        name = "tailwatch_infiniband_hw_events_total"
        assert value(samples, name, **labels, counter="ip4InOctets") == 5
        info = labels_of(samples, "tailwatch_infiniband_device_info", **labels)
        assert info["board_id"] == info["hca_type"] == ""
    assert value(samples, "tailwatch_source_up", source="infiniband", device="") == 1


def test_text_in_place_of_a_number(tree: Sysfs, readings: list[Reading]) -> None:
    """A file that holds `N/A (no PMA)` has no series and is counted as unreadable."""
    device = tree.mlx5("mlx5_4", "0000:3b:00.0", "0000:3a:00.0")
    write(device / "ports/1/counters/VL15_dropped", "N/A (no PMA)")
    samples = infiniband(tree.root, readings).samples()
    assert value(samples, "tailwatch_infiniband_vl15_dropped_total") is None
    assert value(samples, "tailwatch_infiniband_unreadable_files", device="mlx5_4") == 1
    assert value(samples, "tailwatch_infiniband_link_downed_total") == 0
    assert value(samples, "tailwatch_source_up", device="mlx5_4") == 1


def test_sizes_are_no_counters(tree: Sysfs, readings: list[Reading]) -> None:
    """What a driver shows beside its counters (lifespan, what is in use) is not typed a counter."""
    device = tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    for name in ("active_qps", "max_qp", "watermark_cqs", "Active MRs", "rx_bytes"):
        write(device / "hw_counters" / name, 1)
    samples = infiniband(tree.root, readings).samples()
    name = "tailwatch_infiniband_hw_events_total"
    shown = {dict(labels)["counter"] for n, labels in samples if n == name}
    assert "rx_bytes" in shown
    assert not shown & {"lifespan", "active_qps", "max_qp", "watermark_cqs", "Active MRs"}


def test_counters_stick_and_do_not_wrap(tree: Sysfs, readings: list[Reading]) -> None:
    """At its maximum a counter is marked; a fall is a reset and nothing is added to repair it."""
    device = tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    file = device / "ports/1/counters/link_downed"
    seen = []
    write(file, 251)
    reading = infiniband(tree.root, readings)
    for count in (251, 253, 255, 255, 0, 0, 1):
        write(file, count)
        reading.again()
        samples = reading.samples()
        name = "tailwatch_infiniband_counter_saturated"
        seen.append(
            (
                value(samples, "tailwatch_infiniband_link_downed_total"),
                value(samples, name, counter="link_downed"),
                value(samples, "tailwatch_source_resets_total", device="mlx5_0"),
            )
        )
    assert seen == [
        (251, None, 0), (253, None, 0), (255, 1, 0), (255, 1, 0), (0, None, 1), (0, None, 1),
        (1, None, 1),
    ]  # fmt: skip


def test_bandwidth_of_a_full_word_counter_is_unknown(tree: Sysfs, readings: list[Reading]) -> None:
    """A data counter of 32 bits at its maximum gives no bytes at all, and says why."""
    device = tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    write(device / "ports/1/counters/port_rcv_data", 4294967295)
    samples = infiniband(tree.root, readings).samples()
    assert value(samples, "tailwatch_infiniband_received_bytes_total") is None
    name = "tailwatch_infiniband_counter_saturated"
    assert value(samples, name, counter="port_rcv_data") == 1


def test_unreadable_ports_cost_no_other_device(tree: Sysfs, readings: list[Reading]) -> None:
    """A device whose ports cannot be listed is down; all others are still there."""
    device = tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    tree.mlx5("mlx5_1", "0000:4b:00.0", "0000:4a:00.0")
    shutil.rmtree(device / "ports")
    write(device / "ports", "no directory")
    samples = infiniband(tree.root, readings).samples()
    assert value(samples, "tailwatch_source_up", device="mlx5_0") == 0
    assert value(samples, "tailwatch_source_errors_total", device="mlx5_0", code="ENOTDIR") == 1
    assert value(samples, "tailwatch_infiniband_received_bytes_total", device="mlx5_1") is not None


def test_device_that_disappears(tree: Sysfs, readings: list[Reading]) -> None:
    """A device that is gone from sysfs stays as a source that is down, until it is back."""
    for index in range(2):
        tree.mlx5(f"mlx5_{index}", f"0000:{index}b:00.0", f"0000:{index}a:00.0")
    reading = infiniband(tree.root, readings)
    link = tree.root / "class/infiniband/mlx5_1"
    target = link.readlink()
    link.unlink()
    reading.again()
    samples = reading.samples()
    assert value(samples, "tailwatch_source_up", device="mlx5_1") == 0
    assert value(samples, "tailwatch_source_errors_total", device="mlx5_1", code="gone") == 1
    assert value(samples, "tailwatch_source_up", device="mlx5_0") == 1
    link.symlink_to(target)
    reading.again()
    reading.again()
    assert value(reading.samples(), "tailwatch_source_up", device="mlx5_1") == 1


def _seen(*states: int, was_active: bool = False) -> DeviceSeen:
    return DeviceSeen(
        ports=tuple(
            PortSeen(str(index + 1), state, 5, 5e10, "InfiniBand", was_active or state == 4)
            for index, state in enumerate(states)
        )
    )


@pytest.mark.parametrize(
    ("cards", "missed"),
    [
        pytest.param([("a", _seen(1), True)], [], id="one card, never active"),
        pytest.param(
            [("a", _seen(4), True), ("b", _seen(4), True), ("c", _seen(1), True)],
            [("c", "1")],
            id="behind its peers",
        ),
        pytest.param(
            [("a", _seen(4, 1), True), ("b", _seen(4, 1), True)], [], id="second ports uncabled"
        ),
        pytest.param([("a", _seen(1, was_active=True), True)], [("a", "1")], id="was active"),
        pytest.param(
            [("a", _seen(4), True), ("b", _seen(4), True), ("v", _seen(1), False)],
            [],
            id="virtual function or management card",
        ),
    ],
)
def test_which_ports_are_missed(
    cards: list[tuple[str, DeviceSeen, bool]], missed: list[tuple[str, str]]
) -> None:
    """A port is missed when it was active, or its card is behind its peers; else nobody does."""
    states = {(name, port.port): port.state for name, seen, _ in cards for port in seen.ports}
    found = [(n, p) for n, p, expected in expected_active(cards) if expected]
    assert [key for key in found if states[key] != 4] == missed


EVENTS = ("port_state", "port_expected_active")


def missed(samples: Samples) -> set[str]:
    """Return the devices whose port is not active although somebody would miss it."""
    state, expected = (f"tailwatch_infiniband_{name}" for name in EVENTS)
    return {
        dict(labels)["device"]
        for (name, labels), v in samples.items()
        if name == expected and v == 1 and samples[state, labels] != 4
    }


def test_port_that_goes_down_and_comes_back(tree: Sysfs, readings: list[Reading]) -> None:
    """A port that was active is missed once it is down, and is well again when it is back."""
    device = tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    reading = infiniband(tree.root, readings)
    seen = []
    for state in ("4: ACTIVE", "1: DOWN", "4: ACTIVE", "4: ACTIVE"):
        tree.port(device / "ports/1", state, "400 Gb/sec (4X NDR)")
        reading.again()
        seen.append(missed(reading.samples()))
    assert seen == [set(), {"mlx5_0"}, set(), set()]
    name = "tailwatch_source_resets_total"
    assert value(reading.samples(), name, device="mlx5_0") == 0


def test_counters_of_a_management_card_are_no_event(tree: Sysfs, readings: list[Reading]) -> None:
    """A card away from the GPUs may count errors and go down: it is no rail, and not missed."""
    tree.gpu("0000:30:00.0", "0000:2f:00.0", numa=0)
    device = tree.mlx5("mlx5_0", "0000:4b:00.0", "0000:4a:00.0", numa=1)
    tree.mlx5("mlx5_1", "0000:3b:00.0", "0000:3a:00.0", numa=0)
    reading = infiniband(tree.root, readings)
    for count, state in ((10, "4: ACTIVE"), (20, "1: DOWN")):
        write(device / "ports/1/counters/symbol_error", count)
        write(device / "ports/1/counters/link_downed", count)
        tree.port(device / "ports/1", state, "400 Gb/sec (4X NDR)")
        reading.again()
        samples = reading.samples()
        assert missed(samples) == set()
        info = labels_of(samples, "tailwatch_infiniband_device_info", device="mlx5_0")
        assert info["role"] == "management"
        symbols = value(samples, "tailwatch_infiniband_symbol_errors_total", device="mlx5_0")
        assert symbols == count


def test_rename_after_a_boot_clears_the_old_name(tree: Sysfs, readings: list[Reading]) -> None:
    """A card with another name after a boot is one card; nothing is said of the old name."""
    down = tree.mlx5("mlx5_1", "0000:4b:00.0", "0000:4a:00.0")
    tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    before = infiniband(tree.root, readings)
    tree.port(down / "ports/1", "1: DOWN", "400 Gb/sec (4X NDR)")
    before.again()
    assert missed(before.samples()) == {"mlx5_1"}
    before.close()
    pci = tree.root / "bus/pci/devices/0000:4b:00.0"
    (pci / "infiniband/mlx5_1").rename(pci / "infiniband/mlx5_2")
    classes = tree.root / "class/infiniband"
    (classes / "mlx5_1").unlink()
    (classes / "mlx5_2").symlink_to(pci / "infiniband/mlx5_2")
    tree.port(pci / "infiniband/mlx5_2/ports/1", "4: ACTIVE", "400 Gb/sec (4X NDR)")
    samples = infiniband(tree.root, readings).samples()
    assert missed(samples) == set()
    assert not [labels for _, labels in samples if "mlx5_1" in dict(labels).values()]
    info = labels_of(samples, "tailwatch_infiniband_device_info", device="mlx5_2")
    assert info["pci_bus_id"] == "0000:4b:00.0"


def test_interface_that_comes_late_and_gets_another_name(
    tree: Sysfs, readings: list[Reading]
) -> None:
    """A network interface and its new name are seen when devices are looked for."""
    device = tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    reading = infiniband(tree.root, readings)
    name = "tailwatch_infiniband_interface_up"
    assert value(reading.samples(), name) is None
    net = (device / "device").resolve() / "net"
    write(net / "ib0/operstate", "up")
    reading.again()
    assert value(reading.samples(), name, interface="ib0") == 1
    (net / "ib0").rename(net / "ibp59s0")
    reading.again()
    samples = reading.samples()
    assert value(samples, name, interface="ibp59s0") == 1
    assert value(samples, name) == 1
    write(net / "ibp59s0/operstate", "down")
    reading.again()
    assert value(reading.samples(), name) == 0


WIDTHS = {
    4: ("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
    8: ("link_error_recovery", "link_downed", "port_xmit_constraint_errors",
        "port_rcv_constraint_errors"),
    16: ("symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors",
         "port_rcv_switch_relay_errors", "port_xmit_discards", "VL15_dropped"),
    32: ("port_xmit_wait", "port_xmit_data", "port_rcv_data", "port_xmit_packets",
         "port_rcv_packets"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "bits"), [(file, bits) for bits, files in WIDTHS.items() for file in files]
)
def test_width_of_every_counter(tree: Sysfs, readings: list[Reading], file: str, bits: int) -> None:
    """Each counter of the basic set is marked at its own maximum and at no other value."""
    top = (1 << bits) - 1
    device = tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0")
    path = device / "ports/1/counters" / file
    write(path, top - 1)
    reading = infiniband(tree.root, readings)
    saturated = "tailwatch_infiniband_counter_saturated"
    assert value(reading.samples(), saturated, counter=file) is None
    write(path, top)
    reading.again()
    samples = reading.samples()
    assert value(samples, saturated, counter=file) == 1
    # What moved since then is not known: of traffic nothing is said, never 0.
    traffic = file.endswith(("_data", "_packets"))
    assert value(samples, PORT_COUNTERS[file].name) == (None if traffic else top)
    assert value(samples, "tailwatch_source_resets_total", device="mlx5_0") == 0


def test_role_of_a_device(tree: Sysfs, readings: list[Reading]) -> None:
    """Functions of SR-IOV and cards away from the GPUs are told apart from the rails."""
    tree.gpu("0000:30:00.0", "0000:2f:00.0", numa=0)
    tree.mlx5("mlx5_0", "0000:3b:00.0", "0000:3a:00.0", numa=0)
    tree.mlx5("mlx5_1", "0000:4b:00.0", "0000:4a:00.0", numa=1)
    virtual = tree.mlx5("mlx5_2", "0000:3b:00.1", "0000:3a:00.0", numa=0)
    (virtual / "device/physfn").symlink_to(tree.root / "bus/pci/devices/0000:3b:00.0")
    samples = infiniband(tree.root, readings).samples()
    roles = {
        device: labels_of(samples, "tailwatch_infiniband_device_info", device=device)["role"]
        for device in ("mlx5_0", "mlx5_1", "mlx5_2")
    }
    assert roles == {"mlx5_0": "compute", "mlx5_1": "management", "mlx5_2": "virtual"}


def _state_tree(tree: Sysfs, files: dict[str, str]) -> None:
    for path, text in files.items():
        address = path.split("/")[5]
        folder = tree.root / "bus/pci/devices" / address
        if not folder.exists():
            tree.pci(address, "0000:00:01.0", "0x15b3", "0x101b", driver="mlx5_core")
        target = tree.root / path.removeprefix("/sys/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        name = path.split("/infiniband/")[-1].split("/")[0] if "/infiniband/" in path else ""
        link = tree.root / "class/infiniband" / name
        if name and not link.exists():
            link.symlink_to(folder / "infiniband" / name)
            (folder / "infiniband" / name / "device").symlink_to(folder)


GOOD = {
    "0000:0c:00.0": ("mlx5_0", "ib0"), "0000:12:00.0": ("mlx5_1", "ib1"),
    "0000:4b:00.0": ("mlx5_2", "ib2"),
}  # fmt: skip


# What each recorded node is called by who recorded it, and everything that its files show. The
# nodes of bad rate and of bad version have the same files: both are wrong on both, and whoever says
# all that he finds is right on either. Firmware of a recording without a version reads `fw_ver`.
STATES = [
    ("learn_good", "OK", {"up": 8}),
    ("learn_stuck_ib_intf", "INIT", {"up": 6, "INIT": 2, "LINK_OPERSTATE_DOWN": 2}),
    ("learn_ib_intf_bad_rate", "RATE", {"RATE": 8, "FIRMWARE_MISMATCH": 8}),
    ("learn_ib_misbound_if", "MISBIND", {"up": 8, "MISBIND": 3, "FIRMWARE_MISMATCH": 8}),
    (
        "learn_ib_intf_operstate_down",
        "LINK_OPERSTATE_DOWN",
        {"up": 8, "LINK_OPERSTATE_DOWN": 1, "FIRMWARE_MISMATCH": 8},
    ),
    ("learn_ib_intf_bad_version", "FIRMWARE_MISMATCH", {"RATE": 8, "FIRMWARE_MISMATCH": 8}),
    (None, "MISSING", {"MISSING": 8}),
]


@pytest.mark.parametrize(("name", "verdict", "shown"), STATES)
def test_states_of_a_whole_node(
    tree: Sysfs, readings: list[Reading], name: str | None, verdict: str, shown: dict[str, int]
) -> None:
    """The series of six recorded nodes are enough to grade them, by PCI address and not by name."""
    if name is not None:
        _state_tree(tree, json.loads((FIXTURES / "ib-state-trees" / f"{name}.json").read_text()))
    samples = infiniband(tree.root, readings).samples()
    counted: Counter[str] = Counter()
    devices = [dict(ls) for n, ls in samples if n == "tailwatch_infiniband_device_info"]
    for info in devices:
        one = {"device": info["device"]}
        state = value(samples, "tailwatch_infiniband_port_state", **one)
        physical = value(samples, "tailwatch_infiniband_port_physical_state", **one)
        rate = value(samples, "tailwatch_infiniband_port_rate_bytes_per_second", **one)
        up = value(samples, "tailwatch_infiniband_interface_up", **one)
        interface = labels_of(samples, "tailwatch_infiniband_interface_up", **one)["interface"]
        usual = GOOD.get(info["pci_bus_id"], (info["device"], interface))
        counted["up"] += state == 4 and physical == 5 and rate == 25e9
        counted["RATE"] += rate != 25e9
        counted["INIT"] += (state, physical) == (2, 5)
        counted["LINK_OPERSTATE_DOWN"] += up == 0
        counted["FIRMWARE_MISMATCH"] += info["firmware"] != "20.31.2354"
        counted["MISBIND"] += usual[0] != info["device"]
    found = value(samples, "tailwatch_infiniband_devices")
    assert found == len(devices)
    counted["MISSING"] = 8 - len(devices)
    assert +counted == shown
    assert verdict in shown or (verdict == "OK" and set(shown) == {"up"})
