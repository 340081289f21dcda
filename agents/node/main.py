"""The node agent: `python -m tailwatch.agents.node.main --node NAME --steps.directory DIR ...`

Contract: takes records from the rings into `<log>/<node>.steplog`, serves them raw on
`/steps?cursor=N&limit=BYTES`, and what it and its other sources saw on `/metrics`. `/-/ready` has a
line a source. Nothing it does or fails to do reaches a rank. SIGTERM ends it within 2 s with 0;
SIGUSR1 makes it release all devices, SIGUSR2 take them up again. It ends with 1 where only a new
process can go on (the NVIDIA driver was exchanged under it). Needs neither numpy nor torch.

Cost: idle, 5 looks a second at each ring, one read a second of each device; a rendering when
somebody asks, at most one a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from tailwatch.agents.node.collectors import COLLECTORS
from tailwatch.agents.node.collectors.steps import StepsCollector
from tailwatch.agents.node.doorbell import Doorbell, queue_length
from tailwatch.agents.node.flags import Flags, parse
from tailwatch.agents.node.watch import Watch
from tailwatch.agents.server import CURSOR_HEADER, AgentServer, Reply, Route
from tailwatch.agents.service import (
    Switch,
    log,
    make_directory,
    pause_on_signals,
    run_main,
    say_ready,
    stop_on_signals,
)
from tailwatch.steplog import StepLog

POLL_SECONDS = 0.2
RENDER_SECONDS = 1.0
ONCE_SECONDS = 10.0
MAX_LIMIT = 4 << 20


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
    """Run the node agent until SIGTERM or SIGINT; return its exit code."""
    flags = parse(argv)
    return print_once(flags) if flags.once else serve(flags)


def print_once(flags: Flags) -> int:
    """Read every source once and print the exposition."""
    watch = Watch([COLLECTORS[name](flags.config) for name in flags.collectors], flags.config)
    watch.start()
    until = time.monotonic() + ONCE_SECONDS
    while not watch.settled() and time.monotonic() < until:
        time.sleep(0.01)
    sys.stdout.buffer.write(watch.render().render())
    sys.stdout.buffer.flush()
    watch.close()
    return 1 if watch.fatal else 0


def serve(flags: Flags) -> int:
    """Read and serve until a signal or an error that needs a new process."""
    config = flags.config
    stop = stop_on_signals()
    pausing = pause_on_signals()
    doorbell: Doorbell | None = None
    if "steps" in flags.collectors:
        make_directory(config.rings, flags.rings_flag)
        make_directory(config.log, flags.log_flag)
        doorbell = Doorbell(flags.doorbell)
    try:
        watch = Watch([COLLECTORS[name](config) for name in flags.collectors], config)
        routes: dict[str, Route] = {}
        for source in watch.sources:
            if isinstance(source.collector, StepsCollector):
                routes["/steps"] = StepsRoute(source.collector.log)
        server = AgentServer(
            flags.listen, routes, ready=lambda: _readiness(watch), web_config=flags.web_config
        )
        log(_greeting(flags, server.address))
        watch.start()
        try:
            _loop(watch, server, stop, pausing, _waiter(doorbell, watch, stop), flags.ready_file)
        finally:
            server.close()
            watch.close()
    finally:
        if doorbell is not None:
            doorbell.close()
    if watch.fatal:
        log(f"{watch.fatal}; only a new process can go on")
    return 1 if watch.fatal else 0


def _greeting(flags: Flags, address: str) -> str:
    said = f"node {flags.config.node}: {address}, collectors {' '.join(flags.collectors)}"
    if "steps" in flags.collectors:
        said += (
            f", rings {flags.config.rings}, doorbell {flags.doorbell} (the kernel queues "
            f"{queue_length() or 'an unknown number of'} rings)"
        )
    return said


def _readiness(watch: Watch) -> tuple[bool, str]:
    ready, lines = watch.readiness()
    return ready, "".join(f"{line}\n" for line in lines)


def _waiter(doorbell: Doorbell | None, watch: Watch, stop: Switch) -> Callable[[], object]:
    if doorbell is None:
        return lambda: stop.wait(RENDER_SECONDS)

    def wait() -> None:
        if doorbell.wait(POLL_SECONDS):
            watch.nudge("steps")

    return wait


def _loop(
    watch: Watch,
    server: AgentServer,
    stop: Switch,
    pausing: Callable[[], bool],
    wait: Callable[[], object],
    ready_file: Path | None,
) -> None:
    rendered_at = 0.0
    while not (stop.is_set() or watch.fatal):
        if pausing() != watch.paused:
            (watch.resume if watch.paused else watch.pause)()
        if time.monotonic() - rendered_at >= RENDER_SECONDS and (rendered_at or watch.settled()):
            server.publish(watch.render)
            if not rendered_at:
                say_ready(ready_file, server.address)
            rendered_at = time.monotonic()
        wait()


if __name__ == "__main__":
    sys.exit(run_main("tailwatch agent node", main))
