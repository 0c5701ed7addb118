"""The operations application on a free port of this machine, and Chromium in front of it."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from sqlalchemy import Engine

from feedback.database import open_database
from online_rl.config import Settings
from online_rl.dashboard.http_app import create_app
from tests.ops.seed import create_tables, seed

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
VIEWS = ("now", "adaptation", "learner", "feedback", "versions", "trajectories")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


@dataclass
class Service:
    """A running operations application and what stands behind it."""

    url: str
    engine: Engine


@dataclass
class Watched:
    """What a page said and asked for while it was open."""

    problems: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.requested.append(request.url)


def wait_until_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#top-state")).to_contain_text("live")


def _refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no policy behind this test")


@contextmanager
def serve(folder: Path, *, past: bool, port: int = 0, per_taste: int = 320, **settings: Any) -> Iterator[Service]:
    """Serve on a port that the system picks; the port is bound before the thread starts, so none can take it."""
    engine = open_database(f"sqlite:///{folder / 'ops.db'}")
    create_tables(engine)
    if past:
        seed(engine, time.time(), folder / "versions", per_taste=per_taste)
    http = httpx.AsyncClient(transport=httpx.MockTransport(_refuse), base_url="http://policy")
    app = create_app(engine, Settings(**settings), http=http, started_at=time.time() - 3210)
    listening = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield Service(f"http://127.0.0.1:{listening.getsockname()[1]}", engine)
    server.should_exit = True
    thread.join(10)
    engine.dispose()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module, not for the session: while it is open an event loop runs, and no asynchronous test can."""
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; install Debian's package chromium or set CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with a past of three tastes."""
    with serve(tmp_path, past=True) as running:
        yield running


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def open_page(browser: Browser, watched: Watched) -> Iterator[Callable[..., Page]]:
    """Opens a page of a service: `open_page(url, width=…, height=…, color_scheme=…)`."""
    contexts = []

    def opened(url: str, *, width: int = 1360, height: int = 900, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        watched.follow(page)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
