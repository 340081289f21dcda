"""Questions to Prometheus.

Contract: an answer or a `PrometheusError`, never an empty answer in place of a failure. Cost: one
HTTP request a call; the connection is kept.
"""

from __future__ import annotations

import math
from typing import Any

import httpx
import msgspec

from tailwatch.evidence import QueryResult

TIMEOUT_SECONDS = 5.0


class PrometheusError(Exception):
    """Prometheus cannot be reached, or refuses a query; one line that says which."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One series at one moment: its labels, the value, and its time in Unix seconds."""

    labels: dict[str, str]
    value: float
    time: float


class PrometheusClient:
    """A client of one Prometheus; close it, or use it as a context."""

    def __init__(self, url: str, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.url = url
        # Proxies of the environment are for the outside, not for a Prometheus of our own.
        self._http = httpx.Client(base_url=url, timeout=timeout, trust_env=False)

    def instant(self, expr: str) -> list[Sample]:
        """Return the value now of every series that `expr` gives; a scalar has no labels.

        Raises:
            PrometheusError: unreachable, a bad query, or one that gives strings or ranges.
        """
        data = self._ask("/api/v1/query", {"query": expr})
        kind, result = data["resultType"], data["result"]
        if kind == "scalar":
            return [Sample(labels={}, value=float(result[1]), time=float(result[0]))]
        if kind != "vector":
            raise PrometheusError(f"{expr}: gives a {kind}, expected a vector or a scalar")
        return [
            Sample(labels=s["metric"], value=float(s["value"][1]), time=float(s["value"][0]))
            for s in result
            if "value" in s  # a native histogram has none
        ]

    def value(self, expr: str) -> float | None:
        """Return the one value of `expr` now; None when there is no series or it is not a number.

        Raises:
            PrometheusError: as `instant`, or `expr` gives more than one series.
        """
        samples = self.instant(expr)
        if len(samples) > 1:
            raise PrometheusError(f"{expr}: gives {len(samples)} series, expected one")
        return samples[0].value if samples and not math.isnan(samples[0].value) else None

    def range(self, expr: str, start: float, end: float, step: float) -> QueryResult:
        """Return `expr` from `start` to `end` (Unix seconds) every `step` seconds.

        Raises:
            PrometheusError: unreachable, a bad query, or more than 11,000 points a series.
        """
        data = self._ask(
            "/api/v1/query_range", {"query": expr, "start": start, "end": end, "step": step}
        )
        return QueryResult(query=expr, start=start, end=end, step=step, series=data["result"])

    def _ask(self, path: str, form: dict[str, str | float]) -> dict[str, Any]:
        try:
            response = self._http.post(path, data=form)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise PrometheusError(f"Prometheus at {self.url} gives no answer: {reason}") from error
        try:
            answer = response.json()
            if answer["status"] == "success":
                data: dict[str, Any] = answer["data"]
                return data
            reason = answer["error"]
        except (ValueError, KeyError, TypeError):
            reason = f"HTTP status {response.status_code}, expected Prometheus' JSON"
        raise PrometheusError(f"{form['query']}: {reason}")

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> PrometheusClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
