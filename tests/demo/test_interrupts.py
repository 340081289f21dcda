"""The first signal interrupts, however it is swallowed, and a second one never does."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tailwatch.demo.interrupts import NUMBERS, Interrupts


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put the handlers back that pytest had."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_only_the_first_signal_interrupts(number: signal.Signals) -> None:
    """A second signal of any of the three kinds does nothing."""
    Interrupts().install()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    for other in NUMBERS:
        os.kill(os.getpid(), other)


def test_an_interrupt_that_was_swallowed_is_raised_again() -> None:
    """Python drops exceptions in its own hooks; the next check makes up for it."""
    interrupts = Interrupts()
    interrupts.install()
    interrupts.check()
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()
