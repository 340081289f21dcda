"""The job agent: `python -m tailwatch.agents.job.main --run NAME --workload NAME --nodes ...`

Contract: reads the step logs of all node agents, puts job steps together and serves what they say
on `/metrics`: step times with bounds, who is late, restarts, checkpoints. Ready once it has read
what was there when it started. Survives its own restart with baseline and counters.

Cost: one GET a node and interval; see `tailwatch.agents.job.agent`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tailwatch.agents.job.agent import JobAgent
from tailwatch.agents.job.metrics import JobMetrics
from tailwatch.agents.job.pull import LIMIT_BYTES, NodeLog, Puller
from tailwatch.agents.server import AgentServer
from tailwatch.agents.service import log, make_directory, run_main, say_ready, stop_on_signals
from tailwatch.errors import UsageError


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the flags of the job agent."""
    parser = argparse.ArgumentParser(prog="tailwatch agent job", description=__doc__)
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--workload", required=True, help="name of the workload")
    parser.add_argument("--nodes", required=True, help="node agents: name=host:port,...")
    parser.add_argument(
        "--expected-world-size", required=True, type=int, help="ranks it should have"
    )
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port, port 0 for a free one")
    parser.add_argument("--state", required=True, type=Path, help="directory for its state")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between pulls")
    parser.add_argument("--ready-file", type=Path, help="file for the address, once it serves")
    return parser.parse_args(argv)


def node_addresses(text: str) -> dict[str, str]:
    """Return address by node from `name=host:port,...`."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, address = part.strip().partition("=")
        if not (name and equals and address) or name in found:
            raise UsageError(f"{part!r}, expected name=host:port,... each once", source="--nodes")
        found[name] = address
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the job agent until SIGTERM or SIGINT."""
    flags = arguments(argv)
    if flags.expected_world_size < 1:
        raise UsageError("expected at least 1", source="--expected-world-size")
    if not 0.05 <= flags.interval <= 60:
        raise UsageError("expected 0.05 to 60 seconds", source="--interval")
    if not flags.run or "/" in flags.run:
        raise UsageError(f"{flags.run!r}, expected a name without '/'", source="--run")
    addresses = node_addresses(flags.nodes)
    path = make_directory(flags.state, "--state") / f"{flags.run}.job.json"
    stop = stop_on_signals()
    agent = JobAgent(path, flags.run, flags.workload, list(addresses))
    puller = Puller([NodeLog(n, a, agent.cursor(n)) for n, a in addresses.items()])
    metrics = JobMetrics(flags.expected_world_size)
    server = AgentServer(flags.listen, stale_seconds=max(15.0, 3 * flags.interval))
    log(f"job {flags.run}: {server.address}, {len(addresses)} nodes")
    ready = False
    while not stop.is_set():
        started = time.monotonic()
        behind = False
        for frames in puller.round(flags.interval / 2):
            agent.take(frames)
            behind |= len(frames.data) > LIMIT_BYTES // 2
        agent.tick()
        if behind and not ready:
            continue
        server.publish(metrics.render(agent.state))
        if not ready:
            say_ready(flags.ready_file, server.address)
            ready = True
        if not behind:
            stop.wait(max(started + flags.interval - time.monotonic(), 0.0))
    agent.save()
    puller.close()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(run_main("tailwatch agent job", main))
