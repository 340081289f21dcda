"""The source `efa`: which devices, which counters, and what is not believed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sources import Reading, labels_of, value
from support.sysfs import SRD, Sysfs, efa_node, write
from tailwatch.catalogue.efa import DEVICE_COUNTERS, PORT_COUNTERS, RESOURCE_ERRORS


@pytest.fixture
def readings() -> Iterator[list[Reading]]:
    """A list; what is in it is closed."""
    made: list[Reading] = []
    yield made
    for reading in made:
        reading.close()


@pytest.fixture
def tree(tmp_path: Path) -> Sysfs:
    """An empty tree."""
    return Sysfs(tmp_path / "sys")


def efa(tree: Sysfs, readings: list[Reading], *more: str, **settings: object) -> Reading:
    """Read the source on a tree."""
    reading = Reading(tree.root, "efa", *more, **settings)
    readings.append(reading)
    return reading


def test_all_counters_of_a_device(tree: Sysfs, readings: list[Reading]) -> None:
    """All 22 port counters and 14 device counters are exported as they are."""
    folder = tree.efa("rdmap79s0", "0000:4f:00.0", "0000:4e:01.0", "0xefa1", numa=0, srd=True)
    samples = efa(tree, readings).samples()
    assert len(PORT_COUNTERS) == 22
    assert len(DEVICE_COUNTERS) + len(RESOURCE_ERRORS) == 14
    for file, name in PORT_COUNTERS.items():
        written = int((folder / "ports/1/hw_counters" / file).read_text())
        assert value(samples, name, device="rdmap79s0", port="1") == written
    for file, name in DEVICE_COUNTERS.items():
        written = int((folder / "hw_counters" / file).read_text())
        assert value(samples, name, device="rdmap79s0") == written
    for operation in RESOURCE_ERRORS.values():
        name = "tailwatch_efa_resource_errors_total"
        assert value(samples, name, device="rdmap79s0", operation=operation) == 0


def test_old_layout(tree: Sysfs, readings: list[Reading]) -> None:
    """Counters of the device in the directory of the port, as before driver 1.14, are found."""
    folder = tree.efa("efa_0", "0000:4f:00.0", "0000:4e:01.0", "0xefa0", numa=0, srd=False)
    for file in (folder / "hw_counters").iterdir():
        file.rename(folder / "ports/1/hw_counters" / file.name)
    (folder / "hw_counters").rmdir()
    samples = efa(tree, readings).samples()
    written = int((folder / "ports/1/hw_counters/submitted_cmds").read_text())
    assert value(samples, "tailwatch_efa_admin_commands_submitted_total") == written
    assert value(samples, "tailwatch_source_up", device="efa_0") == 1
    assert value(samples, "tailwatch_efa_retransmitted_bytes_total") is None


def test_only_efa_devices_are_efa(tmp_path: Path, readings: list[Reading]) -> None:
    """On p6-b200 eight of ten RDMA devices are EFA, and the two others are nobody's rail."""
    tree = efa_node(tmp_path / "sys", "p6-b200.48xlarge")
    samples = efa(tree, readings, "infiniband").samples()
    assert value(samples, "tailwatch_efa_devices") == 8
    assert value(samples, "tailwatch_efa_expected_devices") == 8
    assert value(samples, "tailwatch_infiniband_devices") == 2
    for device in ("ibp115s0f0", "ibp116s0f0"):
        name = "tailwatch_infiniband_port_expected_active"
        assert value(samples, name, device=device) == 0
        info = labels_of(samples, "tailwatch_infiniband_device_info", device=device)
        assert info["role"] == "management"


@pytest.mark.parametrize(
    ("vendor", "device", "driver", "is_one"),
    [
        ("0x1d0f", "0xefa1", "", True),
        ("0x15b3", "0xefa1", "", False),
        ("0x1d0f", "0x1533", "", False),
        ("0x1d0f", "0xefa9", "efa", True),
        ("0x15b3", "0x1021", "mlx5_core", False),
    ],
)
def test_known_by_driver_or_ids(
    tree: Sysfs, readings: list[Reading], vendor: str, device: str, driver: str, is_one: bool
) -> None:
    """A device is EFA by its driver, without one by vendor and device id together."""
    folder = tree.efa(
        "foo", "0000:4f:00.0", "0000:4e:01.0", device, numa=0, srd=True, driver=driver
    )
    write(folder / "device/vendor", vendor)
    samples = efa(tree, readings).samples()
    assert value(samples, "tailwatch_efa_devices") == int(is_one)
    assert (value(samples, "tailwatch_efa_rx_drops_total") is not None) == is_one


def test_large_value_at_first_sight(tree: Sysfs, readings: list[Reading]) -> None:
    """A counter that is large when first seen is a value like any other, also after a restart."""
    folder = tree.efa("foo", "0000:4f:00.0", "0000:4e:01.0", "0xefa1", numa=0, srd=True)
    write(folder / "ports/1/hw_counters/rx_drops", 1000000000)
    for _ in range(2):
        samples = efa(tree, readings).samples()
        assert value(samples, "tailwatch_efa_rx_drops_total") == 1000000000
        assert value(samples, "tailwatch_source_resets_total", device="foo") == 0


def test_commands_that_are_still_under_way(tree: Sysfs, readings: list[Reading]) -> None:
    """Fewer completed than submitted commands and none unanswered is a device that is well."""
    folder = tree.efa("foo", "0000:4f:00.0", "0000:4e:01.0", "0xefa1", numa=0, srd=True)
    for name, count in (
        ("no_completion_cmds", 0),
        ("submitted_cmds", 108),
        ("completed_cmds", 105),
    ):
        write(folder / "hw_counters" / name, count)
    samples = efa(tree, readings).samples()
    assert value(samples, "tailwatch_efa_admin_commands_without_completion_total") == 0
    assert value(samples, "tailwatch_efa_admin_commands_submitted_total") == 108
    assert value(samples, "tailwatch_source_up", device="foo") == 1


def test_state_and_rate_are_not_believed(tmp_path: Path, readings: list[Reading]) -> None:
    """What the driver makes up of state and rate changes nothing; the type gives the line rate."""
    tree = efa_node(tmp_path / "sys", "p5en.48xlarge")
    name = "tailwatch_efa_line_rate_bytes_per_second"
    before = efa(tree, readings).samples()
    assert {v for (n, _), v in before.items() if n == name} == {25e9}
    for device in (tree.root / "class/infiniband").iterdir():
        write(device / "ports/1/state", "1: DOWN")
        write(device / "ports/1/rate", "400 Gb/sec (8X HDR)")
    after = efa(tree, readings).samples()
    steady = ("tailwatch_source_age_seconds", "tailwatch_source_read_seconds")
    assert {k: v for k, v in before.items() if k[0] not in steady} == {
        k: v for k, v in after.items() if k[0] not in steady
    }


def test_what_hardware_cannot_do_is_absent(tmp_path: Path, readings: list[Reading]) -> None:
    """On a type without RDMA write and retransmission counters their zeros are not exported."""
    tree = efa_node(tmp_path / "sys", "p4d.24xlarge")
    for device in (tree.root / "class/infiniband").iterdir():
        for file in SRD:
            write(device / "ports/1/hw_counters" / file, 0)
    names = {name for name, _ in efa(tree, readings).samples()}
    assert "tailwatch_efa_rdma_read_bytes_total" in names
    assert not any("rdma_write" in name or "retrans" in name for name in names)


def test_missing_counters_are_absent(tree: Sysfs, readings: list[Reading]) -> None:
    """A file that is not there, or holds no number, gives no series and costs no other its own."""
    folder = tree.efa("foo", "0000:4f:00.0", "0000:4e:01.0", "0xefa1", numa=0, srd=True)
    (folder / "ports/1/hw_counters/rx_drops").unlink()
    write(folder / "ports/1/hw_counters/tx_bytes", "N/A")
    samples = efa(tree, readings).samples()
    assert value(samples, "tailwatch_efa_rx_drops_total") is None
    assert value(samples, "tailwatch_efa_tx_bytes_total") is None
    assert value(samples, "tailwatch_efa_rx_bytes_total") is not None


def test_place_of_a_device(tree: Sysfs, readings: list[Reading]) -> None:
    """PCI address, NUMA node, the GPUs behind the same bridge, interface and driver are known."""
    tree.gpu("0000:53:00.0", "0000:4e:01.0", numa=0)
    tree.gpu("0000:54:00.0", "0000:4e:01.0", numa=0)
    tree.gpu("0000:64:00.0", "0000:5e:01.0", numa=1)
    folder = tree.efa("foo", "0000:4f:00.0", "0000:4e:01.0", "0xefa1", numa=0, srd=True)
    write(folder / "ports/1/gids/0", "fe80:0000:0000:0000:04cf:deff:fead:beef")
    write(tree.root / "module/efa/version", "2.17.2g")
    tree.interface("eth3", "06:cf:de:ad:be:ef")
    info = labels_of(efa(tree, readings).samples(), "tailwatch_efa_device_info", device="foo")
    assert info == {
        "node": "n",
        "device": "foo",
        "pci_bus_id": "0000:4f:00.0",
        "numa_node": "0",
        "gpu_pci_bus_ids": "0000:53:00.0,0000:54:00.0",
        "interface": "eth3",
        "mac": "06:cf:de:ad:be:ef",
        "driver_version": "2.17.2g",
    }


def test_interface_that_comes_after_its_device(tree: Sysfs, readings: list[Reading]) -> None:
    """Address and interface are looked at every time devices are looked for."""
    folder = tree.efa("foo", "0000:4f:00.0", "0000:4e:01.0", "0xefa1", numa=0, srd=True)
    (folder / "ports/1/gids/0").unlink()
    reading = efa(tree, readings)
    name = "tailwatch_efa_device_info"
    info = labels_of(reading.samples(), name, device="foo")
    assert (info["mac"], info["interface"]) == ("", "")
    write(folder / "ports/1/gids/0", "fe80:0000:0000:0000:04cf:deff:fead:beef")
    tree.interface("eth3", "06:cf:de:ad:be:ef")
    reading.again()
    info = labels_of(reading.samples(), name, device="foo")
    assert (info["mac"], info["interface"]) == ("06:cf:de:ad:be:ef", "eth3")
    (tree.root / "class/net/eth3").rename(tree.root / "class/net/enp3s0")
    reading.again()
    assert labels_of(reading.samples(), name, device="foo")["interface"] == "enp3s0"


def test_driver_counters_outlive_a_dead_queue(tree: Sysfs, readings: list[Reading]) -> None:
    """When the port cannot be read its device still tells that commands were not answered."""
    folder = tree.efa("foo", "0000:4f:00.0", "0000:4e:01.0", "0xefa1", numa=0, srd=True)
    write(folder / "hw_counters/no_completion_cmds", 1)
    port = folder / "ports/1/hw_counters"
    port.rename(folder / "ports/1/gone")
    samples = efa(tree, readings).samples()
    assert value(samples, "tailwatch_source_up", device="foo") == 0
    assert value(samples, "tailwatch_source_errors_total", device="foo", code="ENOENT") == 1
    assert value(samples, "tailwatch_efa_admin_commands_without_completion_total") == 1
    assert value(samples, "tailwatch_source_up", device="foo/driver") == 1


def test_late_devices_are_found(tmp_path: Path, readings: list[Reading]) -> None:
    """A device that its driver brings up late is found, and counted as missing until then."""
    tree = efa_node(tmp_path / "sys", "p4d.24xlarge")
    late = next((tree.root / "class/infiniband").iterdir())
    aside = tmp_path / "aside"
    target = late.readlink()
    late.rename(aside)
    reading = efa(tree, readings)
    assert value(reading.samples(), "tailwatch_efa_devices") == 3
    assert value(reading.samples(), "tailwatch_efa_expected_devices") == 4
    late.symlink_to(target)
    reading.again()
    assert value(reading.samples(), "tailwatch_efa_devices") == 4


def test_reload_of_the_driver_is_a_reset(tree: Sysfs, readings: list[Reading]) -> None:
    """New files of the same device start from 0: shown as they are, and counted as one reset."""
    folder = tree.efa("foo", "0000:4f:00.0", "0000:4e:01.0", "0xefa1", numa=0, srd=True)
    reading = efa(tree, readings)
    old = folder / "ports/1/hw_counters"
    names = [file.name for file in old.iterdir()]
    old.rename(folder / "ports/1/old")
    for name in names:
        write(folder / "ports/1/hw_counters" / name, 0)
    reading.again()
    samples = reading.samples()
    assert value(samples, "tailwatch_efa_tx_bytes_total") == 0
    assert value(samples, "tailwatch_source_resets_total", device="foo") == 1
