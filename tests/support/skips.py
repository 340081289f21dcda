"""In CI a test that is skipped is a test that does not guard: only what needs a GPU may skip.

As root with CI=true nothing else is missing, so a skip without the mark `gpu` fails the run.
"""

from __future__ import annotations

import os

import pytest

SKIPPED = pytest.StashKey[list[str]]()
_MUST_RUN = os.environ.get("CI") == "true" and os.geteuid() == 0


class _Watcher:
    def __init__(self, skipped: list[str]) -> None:
        self._skipped = skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = hasattr(report, "wasxfail") or "gpu" in report.keywords
        if report.skipped and not expected:
            self._skipped.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skipped.append(report.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Watch for skips where none may be."""
    config.stash[SKIPPED] = []
    if _MUST_RUN:
        config.pluginmanager.register(_Watcher(config.stash[SKIPPED]))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that would have passed."""
    if session.config.stash[SKIPPED] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name the tests that should not have been skipped."""
    for name in config.stash[SKIPPED]:
        terminalreporter.write_line(f"SKIPPED IN CI, which counts as failed: {name}", red=True)
