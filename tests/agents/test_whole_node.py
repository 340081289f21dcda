"""All sources in one agent: what it says as a whole, and that it lets go of everything."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from support.nvml.fixtures import check_with_promtool, value, values
from support.procs import eventually
from support.wholenode import WholeNode
from tailwatch.agents.node.collectors import COLLECTORS
from tailwatch.catalogue import metric_of_sample


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WholeNode]:
    """A node with every source, read."""
    made = WholeNode(tmp_path / "node")
    made.settle()
    yield made
    made.close()


def device_handles(node: WholeNode) -> list[str]:
    """Return the open files of the agent that belong to a device or its driver."""
    links = Path(f"/proc/{node.agent.process.pid}/fd").iterdir()
    targets = []
    for link in list(links):
        try:
            targets.append(os.readlink(link))
        except FileNotFoundError:
            continue
    return [t for t in targets if "/sys/" in t or "nvidiactl" in t or t.endswith("/kmsg")]


def held(node: WholeNode) -> tuple[int, int]:
    """Return initialisations and event sets of NVML that were not given back."""
    calls = Counter(call.split()[0] for call in node.nvml.calls())
    return (
        calls["nvmlInitWithFlags"] - calls["nvmlShutdown"],
        calls["nvmlEventSetCreate"] - calls["nvmlEventSetFree"],
    )


def test_what_an_agent_says_as_a_whole(node: WholeNode) -> None:
    """Every source says something that is in the catalogue, and all parsers can read it."""
    body = node.agent.get("/metrics")[1]
    check_with_promtool(body)
    said = node.scrape()
    sources = {dict(ls)["source"] for n, ls in said if n == "tailwatch_source_up"}
    assert sources == set(COLLECTORS)
    for name, labels in said:
        assert set(dict(labels)) - {"le"} == set(metric_of_sample(name).labels)
    assert sum(1 for name, _ in said if name == "tailwatch_gpu_pod_memory_bytes") == 1
    text = node.agent.get("/metrics", accept="application/openmetrics-text")[1].decode()
    assert text.endswith("# EOF\n")
    names = {sample.name for family in openmetrics(text) for sample in family.samples}
    assert names == {name for name, _ in said}


def test_pause_releases_every_handle_and_resume_takes_all_up_again(node: WholeNode) -> None:
    """While paused no file of a device, no event set and no NVML is left; ranks go on."""
    assert len(device_handles(node)) > 100
    assert any("nvidiactl" in target for target in device_handles(node))
    assert held(node) == (1, 1)
    node.agent.process.send_signal(signal.SIGUSR1)
    assert eventually(lambda: device_handles(node) == [])
    assert held(node) == (0, 0)
    assert eventually(lambda: value(node.scrape(), "tailwatch_node_paused") == 1)
    said = node.scrape()
    assert values(said, "tailwatch_gpu_power_watts") == []
    assert value(said, "tailwatch_rank_last_step") == 3
    assert value(said, "tailwatch_pod_attribution_up") == 1
    node.agent.process.send_signal(signal.SIGUSR2)
    assert eventually(lambda: node.whole <= node.series())
    assert eventually(lambda: node.agent.get("/-/ready")[0] == 200)
    assert held(node) == (1, 1)


def test_sigterm_gives_everything_back_in_time(node: WholeNode) -> None:
    """SIGTERM ends the whole agent with 0 within 2 s, with event set and NVML given back."""
    assert held(node) == (1, 1)
    started = time.monotonic()
    assert node.agent.kill(signal.SIGTERM) == 0
    assert time.monotonic() - started < 2
    assert held(node) == (0, 0)
