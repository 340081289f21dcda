"""What pasted logs come to: the root, its echoes, noise, and what nobody knows."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwatch.agents.explain import Explanation, Incident, explain, read_lines
from tailwatch.errors import UsageError

FIXTURES = Path(__file__).parent / "fixtures"
KERNEL = Path(__file__).parent.parent / "agents" / "fixtures" / "lines"
XID = "NVRM: Xid (PCI:0000:3b:00): "
NOISE = "NCCL INFO NET/OFI Plugin selected platform: AWS"
OFI = "libfabric:77:1708520900::efa:cq:efa_rdm_rxe_handle_error():603<warn> err: "


def text(log: str) -> Explanation:
    """Return what a text means."""
    return explain(log.strip("\n").split("\n"))


def only(line: str) -> Incident:
    """Return the one incident of a line."""
    (incident,) = explain([line]).incidents
    return incident


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("exception-rank2", "user_exception"),
        ("exit3-rank2", "process_failed"),
        ("sigabrt-rank2", "aborted"),
        ("sigbus-rank2", "bus_error"),
        ("sigkill-rank2", "killed"),
        ("sigsegv-rank2", "crashed"),
    ],
)
def test_torchrun_names_the_rank_that_failed(name: str, kind: str) -> None:
    """In real logs of torchrun the culprit is rank 2; those that were taken along are echoes."""
    found = text((FIXTURES / f"{name}.txt").read_text())
    assert found.root is not None
    assert (found.root.kind, found.root.subject, found.root.in_text) == (kind, "rank 2", True)
    victims = {one.subject for one in found.incidents if one.kind == "terminated" and one.echo}
    assert victims == {"rank 0", "rank 1", "rank 3"}
    assert found.unknown_lines == []


def test_an_agent_that_was_stopped_is_no_failure() -> None:
    """SIGTERM to the launcher is an external stop, and no rank is accused."""
    found = text((FIXTURES / "agent-sigterm.txt").read_text())
    assert found.root is not None
    assert (found.root.kind, found.root.subject) == ("external_stop", "launcher")


@pytest.mark.parametrize(
    ("line", "kind", "subject", "is_cause"),
    [
        ("exitcode  : -9 (pid: 7044)  (SIGKILL)", "killed", "pid 7044", True),
        ("exitcode  : 137 (pid: 7044)", "killed", "pid 7044", True),
        ("exitcode  : 134 (pid: 7)", "aborted", "pid 7", True),
        ("exitcode  : -15 (pid: 7)", "terminated", "pid 7", False),
        ("exitcode  : -7 (pid: 7) / traceback : Signal 7 (SIGBUS)", "bus_error", "pid 7", True),
        (f"{XID}79, GPU has fallen off the bus.", "xid_79", "gpu 0000:3b:00.0", True),
        (f"{XID}31, pid=4, name=python, MMU Fault", "xid_31", "gpu 0000:3b:00.0", True),
        (
            "n:8:1 [0] misc/socket.cc:5 NCCL WARN Net : Call to recv from 192.0.2.21<58> failed : "
            "Broken pipe", "peer_gone", "peer 192.0.2.21", False,
        ),
        (
            "n:8:1 [0] NCCL WARN socketProgress: Connection closed by remote peer node2<42830>",
            "peer_gone", "peer node2", False,
        ),
        (
            "n:8:1 [0] NCCL WARN socketPollConnect: connect to 10.0.0.5<35541> returned Connection "
            "refused(111), exceeded error retry count (34)", "peer_refused", "peer 10.0.0.5", False,
        ),
        (
            f"{OFI}103, message: Unresponsive receiver My EFA addr: a://[fe80::1]:0:1 My host id: "
            "i-a Peer EFA addr: a://[fe80::2]:0:2 Peer host id: i-b (13)",
            "efa_remote_unresponsive", "peer i-b", False,
        ),
        (
            "n:8:1 [0] cq():46 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 103. "
            "Error: 4126 (Unresponsive receiver My host id: i-a Peer host id: i-b)",
            "ofi_completion_error", "peer i-b", False,
        ),
        (
            "[rank5]:[E1115 16:42:38.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) "
            "Rank 5] Process group watchdog thread terminated with exception: CUDA error: an "
            "illegal memory access was encountered", "cuda_device_error", "rank 5", True,
        ),
        (
            "[PG ID 3 PG GUID 71 Rank 2] Exception (either an error or timeout) detected by "
            "watchdog at work: 15, last enqueued NCCL work: 16, last completed NCCL work: 14.",
            "watchdog_noticed", "rank 2 of group 71", False,
        ),
        (
            "[PG ID 0 PG GUID 0(default_pg) Rank 5] ProcessGroupNCCL's watchdog got stuck for 480 "
            "seconds without making progress", "watchdog_stuck", "rank 5", True,
        ),
        (
            "[Feb 27 2025 15:10:02] [ERROR] [tid 1] detected NVSwitch fatal error 20034 on fid 0 "
            "on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33",
            "sxid_20034", "nvswitch 0000:86:00.0 link 33", True,
        ),
    ],
)  # fmt: skip
def test_one_line(line: str, kind: str, subject: str, is_cause: bool) -> None:
    """One line already says what it was, whose it was, and whether it can be the cause."""
    found = only(line)
    assert (found.kind, found.subject, bool(found.cause)) == (kind, subject, is_cause)
    assert bool(found.cause) != bool(found.echo)
    assert found.lines == [line]
    assert found.action


@pytest.mark.parametrize(
    "line",
    [
        "libfabric:8:1710000000::efa:domain:x()<warn> FI_HMEM capability requires RDMA",
        "libfabric:8:1710000000::efa:cq:x()<warn> err: 5, message: Flushed during queue pair (1)",
        "NCCL INFO NET/OFI Setting NCCL_TUNER ... not found, using default",
        "NCCL INFO NET/OFI Plugin selected platform: AWS",
        "n:8:1 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping",
        "[Feb 27 2025 11:17:09] [INFO] [tid 1808] multicast group 0 is allocated.",
        "n:8:1 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : port active",
    ],
)
def test_noise_is_called_noise(line: str) -> None:
    """Lines that look bad and mean nothing accuse nobody."""
    found = explain([line])
    assert found.root is None
    assert found.incidents[0].echo.startswith("Noise")


@pytest.mark.parametrize(
    "line",
    [
        "step 12 loss 2.31",
        "user log: training saw Xid 79 error on rank 3, see dmesg",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid : 32, pid=2280636",
        "hw_counters: no_completion_cmds 0, submitted_cmds 108, completed_cmds 105",
    ],
)
def test_unknown_lines_are_said_to_be_unknown(line: str) -> None:
    """A line that no rule knows is listed, not guessed at."""
    found = explain([line])
    assert (found.incidents, found.root, found.unknown_lines) == ([], None, [line])


def test_the_rank_far_behind_is_the_cause() -> None:
    """Of watchdog time-outs in one group the lowest sequence number is the one others wait for."""
    line = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType=A)"
    log = [line.format(rank, 96_117 + rank) for rank in range(7)] + [line.format(7, 64_088)]
    found = explain(log)
    assert found.root is not None
    assert (found.root.kind, found.root.subject) == ("rank_behind", "rank 7")
    assert sum(one.kind == "collective_timeout" and bool(one.echo) for one in found.incidents) == 7


def test_the_rank_that_said_nothing_is_suspected() -> None:
    """When all others time out in one collective, the silent one is named, and as not in a line."""
    line = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=A)"
    found = explain([line.format(rank) for rank in (0, 1, 3, 4)])
    assert found.root is not None
    assert (found.root.kind, found.root.subject) == ("rank_silent", "rank 2")


def test_the_desync_report_names_the_rank() -> None:
    """Who printed the time-out is a victim; who did not join is the root."""
    found = text("""
[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, \
NumelIn=4, NumelOut=4, Timeout(ms)=8000) ran for 8097 milliseconds before timing out
  [0] finished collective #2, OpType=ALLREDUCE
  [1] finished collective #2, but didn't join collective #3 (count from 1)
""")
    assert found.root is not None
    assert (found.root.kind, found.root.subject) == ("rank_did_not_join", "rank 1")


def test_hardware_goes_before_what_follows_from_it() -> None:
    """An Xid among exceptions, aborts and time-outs is the root; teardown Xids accuse no GPU."""
    found = text(f"""
[rank3]: RuntimeError: CUDA error: unspecified launch failure
{XID}45, pid=1, name=python, Ch 0000001
NVRM: Xid (PCI:0000:5e:00): 45, pid=2, name=python, Ch 0000001
{XID}48, pid=1, An uncorrectable double bit error (DBE) has been detected
[rank1]:[E1115 16:42:37.7 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600012 milliseconds before timing out.
exitcode  : -6 (pid: 2202)
""")
    assert found.root is not None
    assert (found.root.kind, found.root.subject) == ("xid_48", "gpu 0000:3b:00.0")
    (teardown,) = [one for one in found.incidents if one.kind == "xid_45"]
    assert teardown.subject == "all GPUs of the job"
    assert len(teardown.lines) == 2
    assert teardown.echo
    assert [bool(one.echo) for one in found.incidents if one.kind == "aborted"] == [True]


def test_a_kill_follows_from_the_kernel_s_report() -> None:
    """SIGKILL is the echo of the out-of-memory killer where the kernel tells of one."""
    found = text("""
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 7044)
Memory cgroup out of memory: Killed process 14750 (python3) total-vm:98kB, anon-rss:65kB
""")
    assert found.root is not None
    assert found.root.kind == "oom_killed"
    assert [bool(one.echo) for one in found.incidents if one.kind == "killed"] == [True]


def test_echoes_alone_point_elsewhere() -> None:
    """Without a cause in the text the root is the peer that most lines name."""
    line = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.{}]:8"
    found = explain([f"[rank{rank}]: {line.format(7 if rank else 9)}" for rank in range(4)])
    assert found.root is not None
    assert (found.root.subject, found.root.in_text) == ("peer 10.0.0.7", False)


def test_tracebacks_of_several_ranks_interleaved() -> None:
    """Each rank's frames go to its own exception, whatever comes between."""
    found = text("""
[rank1]: Traceback (most recent call last):
[rank2]: Traceback (most recent call last):
[rank1]:   File "a.py", line 1, in <module>
[rank2]:   File "b.py", line 2, in <module>
[rank1]: RuntimeError: Connection reset by peer
[rank2]: ValueError: bad
""")
    assert found.unknown_lines == []
    lines = {one.kind: one.lines for one in found.incidents}
    assert [line[:7] for line in lines["user_exception"]] == ["[rank2]"] * 3
    assert [line[:7] for line in lines["peer_gone"]] == ["[rank1]"] * 3


def test_records_of_the_fabric_manager_go_on() -> None:
    """A line without a time belongs to the record above; informational ones are noise."""
    found = text((KERNEL / "fabricmanager.log").read_text())
    assert found.unknown_lines == []
    assert {one.kind for one in found.incidents if one.cause} >= {"sxid_20034"}


def lines(data: bytes) -> Iterator[str]:
    """Return the lines of bytes."""
    return read_lines(io.BytesIO(data), "log")


def test_lines_of_any_kind() -> None:
    """CRLF, progress bars, bytes that are no text and a last line without an end are read."""
    read = list(lines(b"a\r\n10%\r20%\r\n\xff\xfe\nlast"))
    assert read == ["a", "20%", "��", "last"]
    block = 1 << 20
    assert list(lines(b"x" * (block - 1) + b"\r\nb"))[1] == "b"


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\x7fELF\x01", b"\x1f\x8b\x08", b"a\x00\x00b" * 9])
def test_what_is_no_log_is_refused(data: bytes) -> None:
    """Empty and binary input is one clear line."""
    with pytest.raises(UsageError) as caught:
        list(lines(data))
    assert "expected" in str(caught.value)


def test_a_line_of_100_mb_costs_no_memory() -> None:
    """What is past the limit of a line is dropped while it is read."""

    class Endless(io.RawIOBase):
        left = 100

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"x" * size if self.left >= 0 else b""

    tracemalloc.start()
    read = list(read_lines(Endless(), "log"))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(read) == 1
    assert peak < 16 << 20
    assert explain(read).unknown_lines


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                line
                for file in sorted(FIXTURES.glob("*.txt"))
                for line in file.read_text().split("\n")
            ]
        ),
        max_size=60,
    )
)
def test_every_line_ends_in_one_place(log: list[str]) -> None:
    """Lines in any order are an incident's or unknown, none is lost, and nothing fails."""
    found = explain(log)
    placed = [line for one in found.incidents for line in one.lines] + found.unknown_lines
    assert set(placed) == {line.strip()[:400] for line in log if line.strip()}


def test_command_line(tmp_path: Path) -> None:
    """Files and stdin are read, the agreed JSON printed, and the status says what was found."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tailwatch", "explain", *arguments],
            capture_output=True, text=True, input=stdin,
        )  # fmt: skip

    done = run("-", "--json", stdin=f"{XID}79, GPU has fallen off the bus.\nhello\n")
    said = json.loads(done.stdout)
    assert set(said) == {"incidents", "root", "unknown_lines"}
    assert set(said["incidents"][0]) == {"kind", "severity", "subject", "cause", "action", "lines"}
    assert said["unknown_lines"] == ["hello"]
    assert done.returncode == 1
    assert run("-", stdin="hello\n").returncode == 3
    assert run("-", stdin=f"{NOISE}\n").returncode == 0
    done = run(str(FIXTURES / "sigkill-rank2.txt"))
    assert done.stdout.startswith("ROOT  killed: rank 2\n")
    done = run(str(tmp_path / "none"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
