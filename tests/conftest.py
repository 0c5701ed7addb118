"""Under CI nothing may be skipped, and every real part must have been exercised: green has to mean something."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

passed: Counter[str] = Counter()
"""Tests that passed, by marker. Where several processes share the tests, of all of them."""


def under_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--must-pass",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="MARKER,MARKER",
        help="under CI, fail unless a test with each of these markers passed",
    )


def forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure; an expected failure (xfail) stays what it is."""
    if under_ci() and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    forbid_skip(report)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        passed.update(report.keywords)


def missing_markers(config: pytest.Config) -> list[str]:
    """Markers of which no test passed, of those that must."""
    is_part = hasattr(config, "workerinput")  # its controller counts
    return [name for name in config.option.must_pass if passed[name] == 0] if under_ci() and not is_part else []


def pytest_sessionfinish(session: pytest.Session) -> None:
    if missing_markers(session.config) and not session.config.option.collectonly:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in missing_markers(config):
        terminalreporter.write_line(f"CI: no test with the marker {name} passed", red=True)
