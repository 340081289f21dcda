"""What lines of the kernel log mean: Xid, SXid, EFA, mlx5 and the rest, and what they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.agents.lines import Finding, KernelLines
from tailwatch.agents.lines.catalogue import SEVERITIES
from tailwatch.agents.lines.kernel import with_names
from tailwatch.agents.lines.prefix import split_prefix
from tailwatch.errors import UsageError

FIXTURES = Path(__file__).parent.parent / "agents" / "fixtures" / "lines"
LINES = KernelLines()
REGISTERS = "0x00000000 0x00000000 0x00000000 0x00000000 0x00000000"


def match(line: str) -> Finding:
    """Return what a line means; fail when it means nothing."""
    found = LINES.match(line)
    assert found is not None, line
    return found


# One entry a line of xid-traps.txt: what has to be found, None for no event.
TRAPS: list[dict[str, Any] | None] = [
    {"kind": "xid", "code": "94", "device": "0000:01:00.0", "gpu_instance": 5, "pid": 7194},
    {"kind": "xid", "code": "14", "device": "0000:03:00.0", "action": "ignore"},
    {
        "kind": "xid", "code": "149", "unit": "NETIR_LINK_EVT", "severity": "fatal", "link": 9,
        "subcode": 37, "hint": "inspect_peer", "device": "0018:01:00.0",
    },
    {
        "kind": "xid", "code": "149", "unit": "NETIR", "severity": "fatal", "link": None,
        "action": "reboot_node", "device": "0019:01:00.0",
    },
    {"kind": "xid", "code": "149", "subcode": None, "severity": "fatal"},
    {"kind": "xid", "code": "145", "severity": "warning", "unit": "RLW_SRC_TRACK", "link": 17},
    {"kind": "xid", "code": "154", "device": "0000:01:00.0"},
    {"kind": "xid", "code": "46", "severity": "fatal", "device": "0000:3f:00.0"},
    {"kind": "xid", "code": "119", "pid": 3113, "process": "nvc:[driver]", "severity": "fatal"},
    None,
    None,
    None,
    {"kind": "sxid", "code": "20034", "severity": "fatal", "link": 48, "device": "0000:06:00.0"},
    None,
    {"kind": "gpu", "code": "fallen_off_bus", "implies_xid": "79", "device": "0000:a1:00.0"},
    None,
    {"kind": "driver", "code": "version_mismatch", "device": ""},
]  # fmt: skip


@pytest.mark.parametrize("row", range(len(TRAPS)))
def test_lines_that_break_parsers(row: int) -> None:
    """Suffixes, missing parentheses, truncation and look-alikes give exactly what they say."""
    lines = (FIXTURES / "xid-traps.txt").read_text().split("\n")
    found, expected = LINES.match(lines[row]), TRAPS[row]
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("unit", "flag", "xid", "severity", "action"),
    [
        ("NETIR_BER_EVENT", "Nonfatal", "149", "warning", "ignore"),
        ("RLW_RXPIPE", "Nonfatal", "145", "warning", "ignore"),
        ("RLW_CTRL", "Nonfatal", "145", "warning", "ignore"),
        ("RLW_SRC_TRACK", "Nonfatal", "145", "warning", "inspect_hardware"),
        ("RLW_REMAP", "Nonfatal", "145", "warning", "inspect_hardware"),
        ("NETIR", "Fatal", "149", "fatal", "reboot_node"),
        ("NETIR_LINK_EVT", "Fatal", "149", "fatal", "reboot_node"),
        ("NETIR_LINK_EVT/NETIR_LINK_DOWN", "Fatal", "149", "fatal", "reboot_node"),
    ],
)
def test_severity_of_nvlink_events(
    unit: str, flag: str, xid: str, severity: str, action: str
) -> None:
    """The line says whether an NVLink 5 event is fatal, and its unit what to do."""
    found = match(
        f"NVRM: Xid (PCI:0008:01:00): {xid}, pid=1, name=ray::Worker, {unit} {flag} XC0 i0 Link 03 "
        f"(0x00086226 {REGISTERS})"
    )
    assert (found.code, found.severity, found.action) == (xid, severity, action)
    assert found.process == "ray::Worker"


@pytest.mark.parametrize(
    ("register", "subcode", "hint"),
    [
        ("0x025001c6", 37, "inspect_peer"),
        ("0x026001c6", 38, "inspect_software"),
        ("0x004505c6", 4, "inspect_link"),
        ("0x004525c6", 4, "inspect_link"),
    ],
)
def test_subcode_of_a_link_event(register: str, subcode: int, hint: str) -> None:
    """Bits 20-25 of the first register are the subcode, which says where to look."""
    found = match(
        f"NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 "
        f"({register} {REGISTERS})"
    )
    assert (found.subcode, found.hint, found.link) == (subcode, hint, 8)


def test_nvlink_event_without_its_text_is_no_page() -> None:
    """An NVLink 5 code that comes without its line (from NVML) is a warning."""
    assert LINES.xid("149", "0000:01:00.0").severity == "warning"


def test_unknown_code_is_shown_and_not_dropped() -> None:
    """A code in no catalogue is a warning for support."""
    found = match("NVRM: Xid (PCI:0000:04:00): 999, something new")
    assert (found.code, found.severity, found.action) == ("999", "warning", "contact_support")


@pytest.mark.parametrize(
    ("code", "severity"),
    [
        ("13", "warning"), ("31", "warning"), ("43", "info"), ("45", "info"), ("48", "fatal"),
        ("63", "info"), ("64", "fatal"), ("74", "fatal"), ("79", "fatal"), ("94", "warning"),
        ("95", "fatal"), ("109", "fatal"), ("119", "fatal"), ("120", "fatal"), ("154", "info"),
    ],
)  # fmt: skip
def test_severity_by_code(code: str, severity: str) -> None:
    """Fatal is what stops a GPU; what an application did or what follows another is not."""
    assert LINES.xids[code].severity == severity


def test_sxid_says_itself_whether_it_is_fatal() -> None:
    """The word in the line goes before the catalogue, and non-fatal is not read as fatal."""
    line = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): {}, Link 32 egress non-posted PRIV error"
    assert match(line.format("12028, Non-fatal")).severity == "warning"
    assert match(line.format("20034, Non-fatal")).severity == "warning"
    assert match(line.format("12028, Fatal")).severity == "fatal"
    assert match(line.format("20034")).severity == "fatal"
    assert match(line.format("12028, Non-fatal")).link == 32


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system "
        "has\nNVRM: fallen off the bus and is not responding to commands.",
    ],
)
def test_gpu_lost_in_one_record(text: str) -> None:
    """A GPU that fell off the bus is found without a number, also in a record of several lines."""
    found = match(text)
    assert (found.implies_xid, found.device) == ("79", "0000:18:00.0")


def test_gpu_lost_in_several_records() -> None:
    """The driver's message is put together when it comes record by record."""
    lines = KernelLines()
    said = [
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert [lines.match(line) for line in said[:2]] == [None, None]
    found = lines.match(said[2])
    assert found is not None
    assert (found.implies_xid, found.device) == ("79", "0000:18:00.0")
    assert lines.match(said[2]) is None


NIC_NAMES = {"0000:03:00.0": "mlx5_0", "0000:d2:00.0": "mlx5_1"}


@pytest.mark.parametrize(
    ("line", "severity", "device"),
    [
        (
            "mlx5_core 0000:03:00.0: wait_func:1195:(pid 1967079): ENABLE_HCA(0x104) timeout. "
            "Will cause a leak of a command resource", "fatal", "mlx5_0",
        ),
        (
            "mlx5_core 0000:d2:00.0: poll_health:825: device's health compromised - reached miss "
            "count.", "fatal", "mlx5_1",
        ),
        ("mlx5_core: INFO: synd 0x8: unrecoverable hardware error.", "fatal", ""),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out", "warning", ""),
        (
            "mlx5_core 0000:12:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power "
            "on the PCIe slot (27W).", "warning", "0000:12:00.0",
        ),
        (
            "mlx5_core 0000:5c:00.0: mlx5_port_module_event:1131:(pid 0): Port module "
            "event[error]: module 0, Cable error, High Temperature", "warning", "0000:5c:00.0",
        ),
        (
            "mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad "
            "operation(0x2), syndrome (0x305684), err(-22)", "info", "",
        ),
        (
            "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) "
            "op_mod(0x1) failed", "info", "mlx5_1",
        ),
        (
            "mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged", "warning",
            "0000:41:00.1",
        ),
    ],
)  # fmt: skip
def test_mlx5_lines(line: str, severity: str, device: str) -> None:
    """Fatal lines are told from the others, and belong to the NIC they name or to the node."""
    found = with_names(match(line), NIC_NAMES)
    assert (found.kind, found.severity, found.device) == ("mlx5", severity, device)


def test_functions_of_a_card_are_ports_of_their_own() -> None:
    """Function 1 of a card is not called by the name of function 0."""
    line = "mlx5_core 0000:41:00.{}: Port module event: module 1, Cable unplugged"
    names = {"0000:41:00.0": "mlx5_4"}
    assert with_names(match(line.format(0)), names).device == "mlx5_4"
    assert with_names(match(line.format(1)), names).device == "0000:41:00.1"


def test_addresses_of_other_drivers_are_no_nics() -> None:
    """A line of another driver is no mlx5 line, and a GPU is never renamed to a NIC."""
    assert (
        LINES.match("nvme 0000:03:00.0: timeout. Will cause a leak of a command resource") is None
    )
    assert LINES.match("ena 0000:00:05.0: Admin queue is closed") is None
    xid = match("NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus.")
    assert with_names(xid, NIC_NAMES).device == "0000:03:00.0"


@pytest.mark.parametrize(
    ("text", "code", "severity"),
    [
        (
            "The device didn't send any completion for admin cmd GET_STATS(11) status 0 (id: 3, "
            "sq producer: 8, sq consumer: 7, cq consumer: 7)", "admin_no_completion", "fatal",
        ),
        ("Wait for completion (polling) timeout", "admin_poll_timeout", "fatal"),
        ("Admin queue is closed", "admin_queue_dead", "fatal"),
        ("Reset indication didn't turn off", "reset_stuck", "fatal"),
        ("Device isn't ready, can't reset device", "not_ready", "fatal"),
        ("Device isn't ready, abort com init 0x2", "not_ready", "fatal"),
        (
            "The device sent a completion but the driver didn't receive any MSI-X interrupt for "
            "admin cmd GET_STATS(11) status 0", "lost_interrupt", "warning",
        ),
        ("Failed to process command GET_STATS (opcode 11) err -62", "admin_command_failed",
         "warning"),
        ("Failed to submit command CREATE_QP (opcode 1) err -19", "admin_command_failed",
         "warning"),
        ("Failed to get stats type-0 scope-0.0 [-62]", "stats_failed", "info"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("prefix", "device"),
    [
        ("efa 0000:4f:00.0 rdmap79s0: ", "rdmap79s0"),
        ("infiniband rdmap79s0: ", "rdmap79s0"),
        ("efa 0000:4f:00.0: ", "0000:4f:00.0"),
    ],
)
def test_efa_lines(text: str, code: str, severity: str, prefix: str, device: str) -> None:
    """Lines of the EFA driver are found under each way it names its device."""
    found = match(prefix + text)
    assert (found.kind, found.code, found.severity) == ("efa", code, severity)
    assert found.device == device


def test_segfault_in_libnccl_is_no_error_of_a_gpu() -> None:
    """A crash inside libnccl names the process; the time before it is read with its comma."""
    line = (
        "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 pt_main_thread[2536443]: segfault at "
        "7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in "
        "libnccl.so.2[7f7c7ac00000+d3d3000]"
    )
    seconds, text = split_prefix(line)
    assert seconds == pytest.approx(1737434504.285060)
    found = match(text)
    assert (found.kind, found.code, found.severity) == ("nccl", "segfault", "warning")
    assert (found.process, found.pid, found.device) == ("pt_main_thread", 2536443, "")


def test_peermem_noise_is_a_warning() -> None:
    """Memory that GPUDirect lost, as at the end of a job, is a warning to ignore."""
    found = match(
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping "
        "further processing"
    )
    assert (found.severity, found.action) == ("warning", "ignore")


@pytest.mark.parametrize(
    ("line", "seconds", "text"),
    [
        ("[ 12.500000] NVRM: x", None, "NVRM: x"),
        ("Jan 21 04:41:44 node-7 kernel: [ 12.5] NVRM: x", None, "NVRM: x"),
        ("2025-01-21T04:41:44.5Z NVRM: x", 1737434504.5, "NVRM: x"),
        ("NVRM: x", None, "NVRM: x"),
    ],
)
def test_prefixes_of_tools_come_off(line: str, seconds: float | None, text: str) -> None:
    """What dmesg and journald print before a line is taken off, and its time is kept."""
    assert split_prefix(line) == (seconds, text)


def test_platform_overrides_its_actions(tmp_path: Path) -> None:
    """A platform's override changes its own machines, and a file of one's own comes last."""
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    own = tmp_path / "own.toml"
    own.write_text(
        '[[override]]\nplatform = "p5.*"\nkind = "xid"\ncode = "149"\nseverity = "info"\n'
        'reason = "test"\n'
    )
    actions = [
        KernelLines(kind, extra).xid("79", "").action
        for kind, extra in ((None, None), ("p5.48xlarge", None), ("p5.48xlarge", own))
    ]
    assert actions == ["reboot_node", "replace_node", "replace_node"]
    lost = KernelLines("p5.48xlarge").match("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    assert lost is not None
    assert lost.action == "replace_node"
    assert match(line).action == "reboot_node"
    assert KernelLines("p5.48xlarge", own).xid("149", "").severity == "info"
    assert KernelLines("p4d.24xlarge", own).xid("149", "").severity == "warning"


@pytest.mark.parametrize(
    "content",
    ["x", "[[override]]\nplatform = 3\n", "[[overide]]\n", '[[override]]\nkind = "xid"\n'],
)
def test_override_file_that_is_none_is_bad_usage(tmp_path: Path, content: str) -> None:
    """A file of overrides with a mistake in it is named, and nothing starts."""
    path = tmp_path / "own.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"own\.toml"):
        KernelLines(None, path)


def test_catalogues_are_whole() -> None:
    """Every entry says what it means, how bad it is and what to do."""
    for entries in (LINES.xids, LINES.sxids, {rule.code: rule.entry for rule in LINES.rules}):
        for code, entry in entries.items():
            assert entry.meaning, code
            assert entry.action, code
            assert entry.severity in SEVERITIES
    assert len({(rule.kind, rule.code) for rule in LINES.rules}) == len(LINES.rules)


@given(
    st.one_of(
        st.text(max_size=300),
        st.builds(
            lambda a, b, c: f"{a}{b}{c}",
            st.sampled_from(["NVRM: Xid (PCI:0000:01:00", "nvidia-nvswitch1: SXid (PCI:", "efa "]),
            st.text(alphabet="0123456789abc:(), GPU-I.Fatal Link", max_size=60),
            st.text(max_size=60),
        ),
    )
)
def test_no_line_breaks_the_parser(line: str) -> None:
    """Whatever the line, there is a finding or none, and what it names is bounded."""
    found = LINES.match(line)
    if found is not None:
        assert len(found.device) <= 64
        assert len(found.process) <= 64
    split_prefix(line)
