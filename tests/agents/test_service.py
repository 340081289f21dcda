"""What both agents have around their loop."""

from __future__ import annotations

import signal
import time

import pytest

from tailwatch.agents.service import Switch


@pytest.mark.timeout(120)
def test_signal_that_strikes_at_any_moment_of_a_wait() -> None:
    """A signal ends the wait it interrupts, wherever it strikes, and every later one too."""
    before = signal.getsignal(signal.SIGALRM)
    try:
        for microseconds in range(1, 501):
            switch = Switch()
            signal.signal(signal.SIGALRM, lambda *_, s=switch: (s.set(), s.set()))
            signal.setitimer(signal.ITIMER_REAL, microseconds * 1e-6)
            started = time.monotonic()
            assert switch.wait(60.0)
            assert switch.wait(60.0)
            assert switch.is_set()
            assert time.monotonic() - started < 30
            switch.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_switch_that_nobody_turns() -> None:
    """A wait without a signal lasts as long as it was asked to, and says no."""
    switch = Switch()
    assert not switch.wait(0.01)
    assert not switch.is_set()
    switch.close()
