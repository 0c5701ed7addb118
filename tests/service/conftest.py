"""One running service for all tests of this folder."""

from collections.abc import Iterator

import pytest

from online_rl.service.broker import free_port
from tests.service.running import Service


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Ready to answer, with the embedded broker and SQLite. Tests may kill its parts; they come back."""
    running = Service(tmp_path_factory.mktemp("service") / "data", free_port())
    try:
        running.wait_for_line("ready in")
        yield running
    finally:
        running.kill()
