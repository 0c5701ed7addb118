"""promtool, Prometheus' own checker: Debian's package `prometheus` has it."""

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest

Promtool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Runs it: `promtool("check", "metrics", input=text)`."""
    path = shutil.which("promtool")
    if path is None:
        message = "no promtool on the path; install Debian's package prometheus"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return lambda *arguments, **options: subprocess.run(
        [path, *map(str, arguments)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        **options,
    )
