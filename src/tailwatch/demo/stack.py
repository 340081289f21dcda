"""All processes of a game day on this machine, started in order and watched until the end.

    receiver <- Alertmanager <- Prometheus <- node agents, job agent <- rings <- ranks <- launchers

Contract: every process carries the run's token and dies with this one. Ports are free ones, files
lie in the run directory and one scratch directory, so two stacks do not meet. `check` tells at once
when a part is gone that a verdict depends on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tailwatch.alerts.alertmanager import alertmanager_config
from tailwatch.alerts.build import build as build_rules
from tailwatch.chaos.targets import Lost
from tailwatch.notices import read_notices
from tailwatch.processes import Process, free_port, how_it_ended, last_words, spawn, wait_until
from tailwatch.prometheus.alertmanager import AlertmanagerServer
from tailwatch.prometheus.query import PrometheusClient, PrometheusError
from tailwatch.prometheus.receiver import Receiver, start_receiver
from tailwatch.prometheus.server import PrometheusServer, Target
from tailwatch.runs import RunDirectory
from tailwatch.trainer.config import TrainerConfig
from tailwatch.trainer.launch import launcher_command, store_command

NODES = ("node-0", "node-1")
RANKS_PER_NODE = 2
WORLD_SIZE = len(NODES) * RANKS_PER_NODE
START_SECONDS = 60.0
SCRAPE_SECONDS = 1.0


class Stack:
    """The parts of one game day.

    Args:
        webhook: where the receiver writes deliveries.
        scratch: directory on tmpfs for rings and sockets.
        omit: alert rules to leave out.
        interrupted: raises KeyboardInterrupt when the run was interrupted.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: TrainerConfig,
        *,
        token: str,
        scratch: Path,
        webhook: Path,
        omit: Iterable[str],
        progress: Callable[[str], None],
        interrupted: Callable[[], None],
    ) -> None:
        self.run = run
        self._config = config
        self._token = token
        self._scratch = scratch
        self._webhook = webhook
        self._omit = frozenset(omit)
        self._progress = progress
        self._interrupted = interrupted
        self._watching: list[Process] = []
        self._launchers: dict[str, Process] = {}
        self._receiver: Receiver | None = None
        self._alertmanager: AlertmanagerServer | None = None
        self._prometheus: PrometheusServer | None = None
        self._client: PrometheusClient | None = None
        self._store = ""

    def start(self) -> None:
        """Start everything, each part when what it needs is ready; raises StartError."""
        self._interrupted()
        self._progress("starting the webhook receiver and Alertmanager")
        directory = self.run.root
        self._receiver = start_receiver(self._webhook, directory=self.run.logs, token=self._token)
        self._watching.append(self._receiver.process)
        self._alertmanager = AlertmanagerServer(
            directory / "alertmanager",
            token=self._token,
            config=alertmanager_config(self._receiver.url, interval=SCRAPE_SECONDS),
        )
        self._alertmanager.start()
        self._watching.append(self._alertmanager.process)

        self._interrupted()
        self._progress("starting the node agents and the job agent")
        agents = self._start_agents()

        self._interrupted()
        self._progress("starting Prometheus")
        rules = build_rules(directory / "prometheus", run_interval=SCRAPE_SECONDS, omit=self._omit)
        self._prometheus = PrometheusServer(
            directory / "prometheus",
            token=self._token,
            rules=[rules],
            targets=agents,
            alertmanager=self._alertmanager.address,
            interval=SCRAPE_SECONDS,
        )
        self._prometheus.start()
        self._watching.append(self._prometheus.process)
        self._client = PrometheusClient(self._prometheus.url)

        self._interrupted()
        self._progress(f"starting {len(NODES)} nodes with {RANKS_PER_NODE} ranks each")
        self._start_store()
        for node in NODES:
            self.start_node(node)

    def _spawn(self, name: str, command: Sequence[str | Path]) -> Process:
        # One compute thread a rank: four ranks share what few cores there are.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        log = self.run.logs / f"{name}.log"
        return spawn(command, log=log, token=self._token, name=name, env=environment)

    def _agent(self, name: str, module: str, *arguments: str | Path) -> Process:
        return self._spawn(f"agent-{name}", [sys.executable, "-m", module, *arguments])

    def _start_agents(self) -> list[Target]:
        targets = []
        processes: dict[Path, Process] = {}
        for node in NODES:
            rings = self._rings(node)
            rings.mkdir(parents=True)
            ready = self._scratch / f"{node}.address"
            processes[ready] = self._agent(
                node, "tailwatch.agents.node.main",
                "--node", node, "--rings", rings, "--log", self.run.steps,
                "--doorbell", self._doorbell(node), "--listen", "127.0.0.1:0",
                "--collector.disable-defaults", "--collector.steps",
                "--ready-file", ready,
            )  # fmt: skip
        nodes = {}
        for node, (ready, address) in zip(NODES, self._ready(processes), strict=True):
            nodes[node] = address
            targets.append(Target(job="tailwatch-node-agent", address=address))
            self._watching.append(processes[ready])
        ready = self._scratch / "job.address"
        process = self._agent(
            "job", "tailwatch.agents.job.main",
            "--run", self.run.name, "--workload", self._config.workload,
            "--nodes", ",".join(f"{node}={address}" for node, address in nodes.items()),
            "--expected-world-size", str(WORLD_SIZE), "--listen", "127.0.0.1:0",
            "--state", self.run.root / "job-agent", "--ready-file", ready,
        )  # fmt: skip
        [(_, address)] = self._ready({ready: process})
        self._watching.append(process)
        return [*targets, Target(job="tailwatch-job-agent", address=address)]

    def _ready(self, processes: dict[Path, Process]) -> list[tuple[Path, str]]:
        found = []
        for path, process in processes.items():
            wait_until(
                lambda path=path: path.exists() and path.read_text(),  # type: ignore[misc] # bound now
                START_SECONDS, f"{process.name} serves", processes=[process],
            )  # fmt: skip
            found.append((path, path.read_text().strip()))
        return found

    def _start_store(self) -> None:
        self._store = f"127.0.0.1:{free_port()}"
        process = self._spawn("store", store_command(self._store))
        wait_until(
            lambda: "store on" in process.output(),
            START_SECONDS, "the rendezvous store serves", processes=[process],
        )  # fmt: skip
        self._watching.append(process)

    def _rings(self, node: str) -> Path:
        return self._scratch / node / "rings"

    def _doorbell(self, node: str) -> Path:
        return self._scratch / node / "doorbell"

    def start_node(self, node: str) -> None:
        """Start the launcher of a node, at first or after it has left."""
        command = launcher_command(
            run=self.run.root,
            node=node,
            store=self._store,
            ranks=RANKS_PER_NODE,
            nodes=len(NODES),
            rings=self._rings(node),
            doorbell=self._doorbell(node),
        )
        self._launchers[node] = self._spawn(f"launcher-{node}", command)

    def node_running(self, node: str) -> bool:
        """Whether the node's launcher runs."""
        return self._launchers[node].alive()

    def check(self) -> None:
        """Raise Lost when a part is gone; a launcher that left in good order is not.

        Raises KeyboardInterrupt when the run was interrupted and nobody has noticed yet.
        """
        self._interrupted()
        for process in self._watching:
            status = process.poll()
            if status is not None:
                raise Lost(process.name, f"ended ({how_it_ended(status)}); {last_words(process)}")
        states = {node: process.poll() for node, process in self._launchers.items()}
        for node, status in states.items():
            if status not in (None, 0):
                words = last_words(self._launchers[node])
                raise Lost(f"launcher of {node}", f"ended ({how_it_ended(status or 0)}); {words}")
        if states and None not in states.values():
            raise Lost("job", "no node runs any more")

    def baseline(self, configuration: str) -> dict[str, float] | None:
        """Return the baseline that the job agent froze for a configuration, or None so far."""
        names = {
            "first_step": "tailwatch_job_baseline_first_step",
            "last_step": "tailwatch_job_baseline_last_step",
            "n": "tailwatch_job_baseline_steps",
            "n_eff": "tailwatch_job_baseline_n_eff",
            "estimate": "tailwatch_job_baseline_p99_seconds",
            "lower": "tailwatch_job_baseline_p99_lower_seconds",
            "upper": "tailwatch_job_baseline_p99_upper_seconds",
        }
        assert self._client is not None
        found = {}
        try:
            for key, name in names.items():
                value = self._client.value(f'{name}{{configuration="{configuration}"}}')
                if value is None:
                    return None
                found[key] = value
        except PrometheusError as error:
            raise Lost("prometheus", str(error)) from None
        return found

    def client(self) -> PrometheusClient | None:
        """The query client, once Prometheus runs."""
        return self._client

    def firing(self) -> set[str]:
        """Return the names of alerts whose last delivered notification was firing."""
        last: dict[tuple[str, ...], tuple[str, str]] = {}
        for notice in read_notices(self._webhook).notices:
            key = (notice.name, *(f"{k}={v}" for k, v in sorted(notice.labels.items())))
            last[key] = (notice.name, notice.status)
        return {name for name, status in last.values() if status == "firing"}

    def delivered(self, since_ns: int) -> set[str]:
        """Return the names of alerts delivered as firing since a wall time."""
        notices = read_notices(self._webhook).notices
        return {n.name for n in notices if n.status == "firing" and n.received_ns >= since_ns}

    def stop(self) -> None:
        """End all processes: the ranks at once, then what watches them, so that nothing is cut."""
        for process in self._launchers.values():
            # Evidence is on disk and in the rings; a graceful leave would only cost seconds.
            with contextlib.suppress(TimeoutError):
                process.terminate(0.0)
        for process in reversed(self._watching):
            with contextlib.suppress(TimeoutError):
                process.terminate(3.0)
