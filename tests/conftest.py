"""Under CI nothing may be skipped, and every real part must have been exercised: green has to mean something."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

REQUIRED_MARKERS = ("engine", "service", "browser", "postgres", "kcat")
passed: Counter[str] = Counter()


def under_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure; an expected failure (xfail) stays what it is."""
    if under_ci() and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    forbid_skip(report)
    if report.when == "call" and report.passed:
        passed.update(mark.name for mark in item.iter_markers())
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    forbid_skip(report)
    return report


def missing_markers(config: pytest.Config) -> list[str]:
    """Markers of which no test passed, where the whole suite was asked for."""
    whole = config.args == config.getini("testpaths") and not config.option.keyword and not config.option.markexpr
    return [name for name in REQUIRED_MARKERS if passed[name] == 0] if whole and under_ci() else []


def pytest_sessionfinish(session: pytest.Session) -> None:
    if missing_markers(session.config) and not session.config.option.collectonly:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in missing_markers(config):
        terminalreporter.write_line(f"CI: no test with the marker {name} passed", red=True)
