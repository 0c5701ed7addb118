"""promtool, Prometheus' own checker: Debian's package `prometheus` has it."""

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Promtool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Runs it: `promtool("check", "metrics", input=text)`."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("no promtool on the path; install Debian's package prometheus")

    def run(*arguments: Any, **options: Any) -> "subprocess.CompletedProcess[str]":
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.run([path, *map(str, arguments)], check=False, **output, **options)

    return run
