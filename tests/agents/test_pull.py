"""The way from a node agent's log to the job agent, over a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ranks import step_record
from tailwatch.agents.job.pull import NodeLog
from tailwatch.agents.node.main import StepsRoute
from tailwatch.agents.server import AgentServer
from tailwatch.records import StepRecord, decode, encode
from tailwatch.steplog import StepLog, frame, payloads


def pull(log: NodeLog, rounds: int = 4) -> list[int]:
    """Return the steps that come in within some rounds."""
    found = []
    for _ in range(rounds):
        for _, payload in payloads(log.fetch().data):
            record = decode(payload)
            assert isinstance(record, StepRecord)
            found.append(record.step)
    return found


def test_a_damaged_frame_costs_one_record(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The job agent is led past damage, reads what lies behind it, and says what it passed over."""
    path = tmp_path / "node-0.steplog"
    frames = [frame(encode(step_record(0, step))) for step in (1, 2, 3, 4)]
    data = bytearray(b"".join(frames))
    begin = len(frames[0])
    end = begin + len(frames[1])
    data[begin + 20] ^= 1
    path.write_bytes(data)
    steplog = StepLog(path)
    server = AgentServer("127.0.0.1:0", {"/steps": StepsRoute(steplog)})
    try:
        assert pull(NodeLog("node-0", server.address)) == [1, 3, 4]
        assert f"damaged from {begin} to {end}" in capfd.readouterr().err
        # An agent that had come as far as the damaged frame when it stopped goes on behind it.
        again = NodeLog("node-0", server.address, begin)
        assert pull(again) == [3, 4]
        steplog.append([encode(step_record(0, 5))])
        assert pull(again) == [5]
    finally:
        server.close()
        steplog.close()
