"""`tailwatch checkpoint verify|list|latest` on what others wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.foreign import FIXTURES, cli, megatron, saved, values


def test_json_has_the_agreed_fields() -> None:
    """One object on stdout and nothing else, with the fields that scripts rely on."""
    outcome = cli("verify", FIXTURES / "rename-race" / "out", "--json")
    assert (outcome.returncode, outcome.stderr) == (3, b"")
    document = json.loads(outcome.stdout)
    assert set(document) == {
        "path",
        "format",
        "verdict",
        "latest",
        "would_load",
        "steps_lost",
        "candidates",
    }
    for candidate in document["candidates"]:
        assert {"name", "step", "verdict", "reasons", "files"} <= set(candidate)
        for file in candidate["files"]:
            assert {"name", "size", "faults"} <= set(file)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("one-bit/good.pt", 0),
        ("one-bit/bitflip.pt", 1),
        ("dcp-broken/nometa", 1),
        ("rename-race/out", 3),
        ("no/such/directory", 2),
    ],
)
def test_exit_statuses(name: str, status: int) -> None:
    """The verdict is the exit status; wrong input is 2, on one line, without a traceback."""
    outcome = cli("verify", FIXTURES / name)
    assert outcome.returncode == status
    assert bool(outcome.stdout) == (status != 2)
    assert len(outcome.stderr.splitlines()) == (status == 2)


def test_the_view_for_people(tmp_path: Path) -> None:
    """The table shows each step and its verdict, the reasons stand on whole lines, the loss too."""
    megatron(tmp_path, 100)
    newest = megatron(tmp_path, 200)
    (newest / "mp_rank_01_000" / "model_optim_rng.pt").write_bytes(b"")
    outcome = cli("verify", tmp_path)
    text = outcome.stdout.decode()
    assert outcome.returncode == 1
    assert " • iter_0000200/mp_rank_01_000/model_optim_rng.pt is empty: 0 bytes\n" in text
    assert "corrupt: a restart loads iter_0000100, 100 steps lost\n" in text
    assert "▶" in text
    assert "tp=2, pp=2, any dp" in text
    listed = cli("list", tmp_path)
    assert listed.returncode == 0
    assert "iter_0000100" in listed.stdout.decode()
    assert " • " not in listed.stdout.decode()


def test_latest_prints_the_name_alone(tmp_path: Path) -> None:
    """A script gets the name of what would be loaded; its verdict is the exit status."""
    megatron(tmp_path, 100)
    outcome = cli("latest", tmp_path)
    assert (outcome.returncode, outcome.stdout) == (0, b"iter_0000100\n")
    outcome = cli("latest", FIXTURES / "rename-race" / "out")
    assert (outcome.returncode, outcome.stdout) == (3, b"checkpoint-48\n")
    outcome = cli("latest", FIXTURES / "latest-before-durable" / "ckpt")
    assert (outcome.returncode, outcome.stdout) == (1, b"")


def test_it_reads_in_bounded_memory(tmp_path: Path) -> None:
    """A file of half a gigabyte that is nearly all hole is judged without being held in memory."""
    path = saved(tmp_path / "step-1.pt", {"w": values(1)})
    os.truncate(path, 1 << 29)
    script = (
        "import sys; from pathlib import Path; from tailwatch.integrity import audit;"
        "status = lambda: Path('/proc/self/status').read_text();"
        "print(audit(Path(sys.argv[1])).verdict, status().split('VmHWM:')[1].split()[0])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
    )
    verdict, kibibytes = outcome.stdout.split()
    assert verdict == "corrupt"
    assert int(kibibytes) < 200 * 1024


def test_torch_is_not_imported() -> None:
    """The judge runs where there is no torch: agents and the command line import none."""
    script = (
        "import sys; from pathlib import Path; from tailwatch.integrity import audit;"
        "audit(Path(sys.argv[1]));"
        "assert not {'torch', 'safetensors', 'numpy'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script, FIXTURES / "dcp-broken" / "trunc10"], check=True)
