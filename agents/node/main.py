"""The node agent: `python -m tailwatch.agents.node.main --node NAME --rings DIR --log DIR ...`

Contract: takes records from the rings in `--rings` into `<log>/<node>.steplog`, serves them raw on
`/steps?cursor=N&limit=BYTES` and what it saw on `/metrics`. Nothing it does or fails to do reaches
a rank. Needs neither numpy nor torch.

Cost: idle, 5 looks a second at each ring and two renderings a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tailwatch.agents.node.collectors import COLLECTORS, NodeConfig, Source, StepsCollector
from tailwatch.agents.node.doorbell import Doorbell, queue_length
from tailwatch.agents.server import CURSOR_HEADER, AgentServer, Reply
from tailwatch.agents.service import log, make_directory, run_main, say_ready, stop_on_signals
from tailwatch.errors import UsageError
from tailwatch.exposition import Snapshot
from tailwatch.steplog import StepLog

POLL_SECONDS = 0.2
RENDER_SECONDS = 0.5
MAX_LIMIT = 4 << 20


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the flags of the node agent."""
    parser = argparse.ArgumentParser(prog="tailwatch agent node", description=__doc__)
    parser.add_argument("--node", required=True, help="name of this node")
    parser.add_argument("--rings", required=True, type=Path, help="directory of rings (tmpfs)")
    parser.add_argument("--log", required=True, type=Path, help="directory of the step log")
    parser.add_argument("--doorbell", required=True, type=Path, help="datagram socket to create")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port, port 0 for a free one")
    parser.add_argument("--ready-file", type=Path, help="file for the address, once it serves")
    return parser.parse_args(argv)


class StepsRoute:
    """Answers `/steps`: whole frames of the step log from a cursor on, up to damage if any."""

    def __init__(self, steplog: StepLog) -> None:
        self._log = steplog

    def __call__(self, query: dict[str, str]) -> Reply:
        """Return frames, or 400 for a malformed and 416 for an impossible cursor."""
        cursor, limit = query.get("cursor", "0"), query.get("limit", str(MAX_LIMIT))
        if not (cursor.isdecimal() and limit.isdecimal() and len(cursor) < 20 and len(limit) < 20):
            return Reply(400, b"expected /steps?cursor=BYTES&limit=BYTES\n")
        try:
            frames = self._log.read(int(cursor), min(int(limit), MAX_LIMIT))
        except ValueError as error:
            return Reply(416, f"{error}\n".encode())
        following = str(self._log.next_frame(int(cursor) + len(frames)))
        return Reply(200, frames, "application/octet-stream", ((CURSOR_HEADER, following),))


def main(argv: list[str] | None = None) -> int:
    """Run the node agent until SIGTERM or SIGINT."""
    flags = arguments(argv)
    if not flags.node or "/" in flags.node:
        raise UsageError(f"{flags.node!r}, expected a name without '/'", source="--node")
    config = NodeConfig(
        node=flags.node,
        rings=make_directory(flags.rings, "--rings"),
        log=make_directory(flags.log, "--log"),
    )
    stop = stop_on_signals()
    doorbell = Doorbell(flags.doorbell)
    try:
        collectors = [collector(config) for collector in COLLECTORS]
        sources = [Source(collector, config.node) for collector in collectors]
        steps = next(c for c in collectors if isinstance(c, StepsCollector))
        server = AgentServer(flags.listen, {"/steps": StepsRoute(steps.inbox.log)})
        log(
            f"node {config.node}: {server.address}, rings {config.rings}, doorbell "
            f"{flags.doorbell} (the kernel queues {queue_length() or 'an unknown number of'} rings)"
        )
        rendered_at = 0.0
        while not stop.is_set():
            for source in sources:
                source.read()
            if time.monotonic() - rendered_at >= RENDER_SECONDS:
                server.publish(render(sources))
                if not rendered_at:
                    say_ready(flags.ready_file, server.address)
                rendered_at = time.monotonic()
            doorbell.wait(POLL_SECONDS)
        # A last look: what a rank left before it was told to end too.
        for source in sources:
            source.read()
        server.close()
        for source in sources:
            source.collector.close()
    finally:
        doorbell.close()
    return 0


def render(sources: list[Source]) -> bytes:
    """Return the exposition of all sources."""
    snapshot = Snapshot()
    for source in sources:
        source.add_to(snapshot)
    return snapshot.render()


if __name__ == "__main__":
    sys.exit(run_main("tailwatch agent node", main))
