"""What is normal for a configuration: found once, then frozen.

Contract: the baseline is the first run of consecutive comparable steps of one attempt that says
enough about p99 (effective sample size of 299, so that its upper bound exists). It never moves
afterwards: a job that gets slower by and by is compared with what it was.

Cost: one sort of the window every `CHECK_EVERY` steps until it is found.
"""

from __future__ import annotations

import msgspec

from tailwatch.statistics import N_EFF_FOR_P99, quantile_bounds

CHECK_EVERY = 20
MAX_STEPS = 4096


class Baseline(msgspec.Struct, kw_only=True, frozen=True):
    """The frozen p99 of a configuration with its bounds, in seconds; `steps` of `attempt`."""

    configuration: str
    attempt: int
    first_step: int
    last_step: int
    steps: int
    n_eff: float
    p99: float
    lower: float | None
    upper: float


class BaselineSearch(msgspec.Struct, kw_only=True):
    """The window that may become the baseline of `configuration`."""

    configuration: str
    attempt: int = 0
    last_step: int = -1
    seconds: list[float] = []
    unchecked: int = 0

    def add(self, attempt: int, step: int, seconds: float) -> Baseline | None:
        """Take a comparable step; return the baseline once there is one."""
        if (attempt, step) != (self.attempt, self.last_step + 1):
            self.seconds.clear()
        self.attempt, self.last_step = attempt, step
        self.seconds.append(seconds)
        if len(self.seconds) > MAX_STEPS:
            del self.seconds[0]
        self.unchecked += 1
        n = len(self.seconds)
        if n < N_EFF_FOR_P99 or self.unchecked < CHECK_EVERY:
            return None
        self.unchecked = 0
        found = quantile_bounds(self.seconds)
        if found.n_eff < N_EFF_FOR_P99 or found.estimate is None or found.upper is None:
            return None
        return Baseline(
            configuration=self.configuration,
            attempt=attempt,
            first_step=step - n + 1,
            last_step=step,
            steps=n,
            n_eff=found.n_eff,
            p99=found.estimate,
            lower=found.lower,
            upper=found.upper,
        )
