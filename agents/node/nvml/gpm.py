"""Profiling counters (GPM) of a GPU or a MIG instance, over the time between two reads.

Contract: `read` takes a sample and compares it with the one of the read before, so it never sleeps;
the first read, and one sooner than NVML allows, gives nothing. `ProfilingCheck` says when the
counters contradict what else is known of the GPU: they can stay at 0 on a busy one after an Xid.

Cost: two NVML calls a read. A sampler belongs to one part, and no two threads use it at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tailwatch.agents.node.base import SourceError
from tailwatch.agents.node.nvml.calls import DeviceCalls
from tailwatch.agents.node.nvml.library import NvmlError

GRAPHICS, SM, OCCUPANCY, TENSOR, DRAM, NVLINK_RX, NVLINK_TX = 1, 2, 3, 5, 10, 60, 61
MIN_SECONDS = 0.1
STUCK_SECONDS = 300.0


class GpmSampler:
    """Reads GPM of a device, or of one of its GPU instances."""

    def __init__(
        self,
        calls: DeviceCalls,
        metrics: tuple[int, ...],
        gpu_instance: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._metrics = metrics
        self._gi = gpu_instance
        self._clock = clock
        self._samples: list[Any] = []
        self._previous_at: float | None = None
        self._request: Any = None

    def read(self) -> dict[int, float]:
        """Return the metrics since the last read, in NVML's units (per cent, MiB/s)."""
        library = self._calls.library
        now = self._clock()
        if self._previous_at is not None and now - self._previous_at < MIN_SECONDS:
            return {}
        if not self._samples:
            if not self._supported():
                return {}
            try:
                self._samples = [library.call("nvmlGpmSampleAlloc") for _ in range(2)]
            except NvmlError as error:
                self._calls.refused("nvmlGpmSampleAlloc", error)
                return {}
        older, newer = self._samples
        if self._gi is None:
            taken = self._calls.ask("nvmlGpmSampleGet", newer)
        else:
            taken = self._calls.ask("nvmlGpmMigSampleGet", self._gi, newer, memo=self._gi)
        if taken is None:
            self.restart()
            return {}
        first = self._previous_at is None
        self._samples = [newer, older]
        self._previous_at = now
        return {} if first else self._compare(older, newer)

    def _supported(self) -> bool:
        if not self._calls.supports("gpm"):
            return False
        answer = self._calls.ask("nvmlGpmQueryDeviceSupport")
        if answer is not None and not answer.isSupportedDevice:
            self._calls.lacks("gpm")
        return answer is not None and bool(answer.isSupportedDevice)

    def _compare(self, older: Any, newer: Any) -> dict[int, float]:
        request = self._request
        if request is None:
            request = self._request = self._calls.library.c_nvmlGpmMetricsGet_t()
            request.version = self._calls.library.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = older, newer
        for place, metric in enumerate(self._metrics):
            request.metrics[place].metricId = metric
        if self._calls.ask_of(request, "nvmlGpmMetricsGet") is None:
            self.restart()
            return {}
        answers = [request.metrics[place] for place in range(len(self._metrics))]
        return {a.metricId: a.value for a in answers if not a.nvmlReturn}

    def restart(self) -> None:
        """Give the samples back; the next read begins anew."""
        samples, self._samples, self._previous_at = self._samples, [], None
        for sample in samples:
            try:
                self._calls.library.call("nvmlGpmSampleFree", sample)
            except SourceError:
                continue


class ProfilingCheck:
    """Compares the profiling counters with utilisation and power.

    >>> now = [0.0]
    >>> check = ProfilingCheck(clock=lambda: now[0])
    >>> check.contradicts(utilization=1.0, watts=655, limit_watts=700, graphics=0.0)
    True
    >>> now[0] = 300.0
    >>> check.contradicts(1.0, 655, 700, 0.0), check.stuck
    (True, True)
    >>> check.contradicts(1.0, 655, 700, 0.93), check.stuck
    (False, False)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def contradicts(
        self,
        utilization: float | None,
        watts: float | None,
        limit_watts: float | None,
        graphics: float | None,
    ) -> bool:
        """Return whether a GPU that works and draws power is idle by its profiling counters."""
        if utilization is None or watts is None or limit_watts is None or graphics is None:
            return False
        contradiction = utilization >= 0.9 and watts > 0.6 * limit_watts and graphics == 0
        if not contradiction:
            self._since = None
        elif self._since is None:
            self._since = self._clock()
        return contradiction

    @property
    def stuck(self) -> bool:
        """Whether they have contradicted for five minutes."""
        return self._since is not None and self._clock() - self._since >= STUCK_SECONDS
