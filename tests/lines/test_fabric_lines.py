"""Lines of libfabric, the OFI plugin and the fabric manager: causes, peers, and mere noise."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.agents.lines import Finding, libfabric
from tailwatch.agents.lines.fabric_manager import FabricManagerLines
from tailwatch.agents.lines.libfabric import FabricError, suspects

LOG = Path(__file__).parent.parent / "agents" / "fixtures" / "lines" / "fabricmanager.log"
TXE = "libfabric:451707:1708520807::efa:cq:efa_rdm_txe_handle_error():737<warn> "


def findings(lines: Iterable[str]) -> list[Finding]:
    """Return what the lines of a fabric manager's log mean, in their order."""
    log = FabricManagerLines()
    return [found for line in lines if (found := log.match(line)) is not None]


def error(line: str) -> FabricError:
    """Return what a line tells of; fail when it is no fault."""
    found = libfabric.parse(line)
    assert found is not None, line
    return found


def test_provider_number_goes_before_the_text() -> None:
    """The number in the last parentheses says what it was, whatever err and message suggest."""
    found = error(
        f"{TXE}err: 5, message: Invalid address My EFA addr: fi_addr_efa://[fe80::1]:0:1072483550 "
        "My host id: i-0000000000000000a Peer EFA addr: fi_addr_efa://[fe80::2]:0:947699476 "
        "Peer host id: i-0000000000000000b (7)"
    )
    assert (found.cause, found.err, found.provider_error) == ("remote_memory_registration", 5, 7)
    assert (found.pid, found.time) == (451707, 1708520807)
    assert (found.host, found.peer_host) == ("i-0000000000000000a", "i-0000000000000000b")


def test_unreachable_peer() -> None:
    """A peer that never answered is named."""
    found = error(
        f"{TXE}err: 113, message: Unreachable remote My EFA addr: fi_addr_efa://[fe80::1]:0:1 My "
        "host id: i-0000000000000000a Peer EFA addr: fi_addr_efa://[fe80::3]:0:2 Peer host id: "
        "i-0000000000000000c (15)"
    )
    assert (found.cause, found.peer_host) == ("remote_unreachable", "i-0000000000000000c")


def test_plugin_line_alone_is_unclassified() -> None:
    """The plugin's own line says that something failed and not what."""
    found = error(
        "NCCL WARN NET/OFI Request completed with error. RC: 21. Error: unknown error. Completed "
        "length: 0, Request: { dev: 0, size: 0, state: CREATED, direction: SEND }"
    )
    assert (found.cause, found.provider_error, found.peer_host) == ("unclassified", None, "")


def test_peer_without_a_host_id_is_known_by_its_address() -> None:
    """`N/A` is no host; the address stands in for it."""
    found = error(
        "libfabric:77:1708520900::efa:cq:efa_rdm_rxe_handle_error():603<warn> err: 103, message: "
        "Unresponsive receiver My EFA addr: fi_addr_efa://[fe80::1]:0:1 My host id: i-a Peer EFA "
        "addr: fi_addr_efa://[fe80::9]:0:5 Peer host id: N/A (13)"
    )
    assert (found.cause, found.peer_host) == ("remote_unresponsive", "")
    assert found.peer_address == "fi_addr_efa://[fe80::9]:0:5"
    short = error(
        "libfabric:77:1708520900::efa:cq:efa_rdm_rxe_handle_error():603<warn> err: 103, message: "
        "Unresponsive receiver ... Peer host id: N/A (13)"
    )
    assert (short.cause, short.peer_host) == ("remote_unresponsive", "")


@pytest.mark.parametrize(
    "line",
    [
        "libfabric:8:1710000000::efa:domain:efa_hmem_validate_p2p_support_cuda():1<warn> FI_HMEM "
        "capability requires RDMA, which this device does not support.",
        "NCCL INFO NET/OFI Setting NCCL_TUNER ... not found, using default",
        "libfabric:8:1710000000::core:core:ofi_reg_dl_prov():1<warn> dlopen(libefa-fi.so): cannot "
        "open shared object file",
        "NCCL INFO NET/OFI Plugin selected platform: AWS",
        "libfabric:8:1710000000::efa:cq:efa_rdm_cq_poll():1<warn> err: 5, message: Flushed during "
        "queue pair destroy (1)",
        "libfabric:8:1710000000::efa:cq:...<warn> ... Flushed during queue pair destroy (1)",
        "hw_counters: no_completion_cmds 0, submitted_cmds 108, completed_cmds 105",
    ],
)
def test_warnings_that_are_no_faults(line: str) -> None:
    """Start-up notes and what is flushed at the end are nothing."""
    assert libfabric.parse(line) is None


def told(host: str, peer: str) -> FabricError:
    """Return an error one host reports of another."""
    return FabricError(1, 1, 113, 15, "remote_unreachable", host, peer, "")


def test_host_that_many_name_is_the_suspect() -> None:
    """31 hosts that name the same peer point at the peer."""
    assert suspects([told(f"h{n}", "bad") for n in range(31)]) == ["bad"]


def test_host_that_names_many_is_the_suspect() -> None:
    """One host that names many peers is the suspect itself."""
    assert suspects([told("bad", f"h{n}") for n in range(31)]) == ["bad"]


def test_nobody_is_suspect_of_a_single_error() -> None:
    """Two hosts and one error do not say which of them it was."""
    assert suspects([told("a", "b")]) == []


def test_fabric_manager_log() -> None:
    """Fatal and non-fatal switch errors are told apart in a stream of multi-line info records."""
    found = findings(LOG.read_text().splitlines())
    assert [(f.kind, f.code, f.severity, f.link) for f in found] == [
        ("sxid", "12028", "warning", 61),
        ("sxid", "20034", "fatal", 33),
        ("fabric_manager", "multicast_setup_failed", "fatal", None),
    ]
    assert found[0].device == found[1].device == "0000:86:00.0"
    assert [f.action for f in found] == ["ignore", "reboot_node", "restart_fabric_manager"]


@pytest.mark.parametrize("stamp", ["[Feb 27 2025 15:10:02] [ERROR] [tid 1] ", "... ", ""])
def test_fabric_manager_that_will_not_start(stamp: str) -> None:
    """Missing switches are fatal for the node; nothing to do on a PCI system is no error."""
    found = findings(
        [
            f"{stamp}detected number of NVSwitches don't match with any supported system topology, "
            "aborting fabric manager",
            f"{stamp}request failed: NV_WARN_NOTHING_TO_DO",
        ]
    )
    assert [(f.code, f.severity) for f in found] == [("topology_mismatch", "fatal")]


def test_second_line_belongs_to_the_record_above() -> None:
    """A line without a time stamp continues its record: under one of level INFO it is no error."""
    error = "detected NVSwitch fatal error 20034 on fid 0 port 33"
    stamp = "[Feb 27 2025 11:16:31] [{}] [tid 1803] "
    assert findings([stamp.format("INFO") + "a message:", error]) == []
    (found,) = findings([stamp.format("ERROR") + "as follows:", error])
    assert (found.code, found.severity, found.link, found.device) == ("20034", "fatal", 33, "")


@given(st.lists(st.text(max_size=120), max_size=8))
def test_no_line_breaks_them(lines: list[str]) -> None:
    """Whatever the lines, there are findings or none."""
    assert all(isinstance(found, Finding) for found in findings(lines))
    for line in lines:
        libfabric.parse(line)
