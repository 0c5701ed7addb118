"""One replica of the policy endpoint in this process, over HTTP: the service's own engine, capture, spool and swap.

What it follows otherwise is played here: the registry and the deployer by `Line`, the log by `MemoryLog`, Ray Serve's
proxy by uvicorn. A delivery goes the whole way: assignment, verification, swap, proof, report.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import uvicorn

from benchmarks.swap.versions import Versions
from online_rl.schemas import PolicyVersion
from serving.artifact import describe_base
from serving.inference_ids import InferenceIds
from serving.replica_store import ReplicaReport
from serving.schemas import GENERATIONS_TOPIC, Generation
from serving.service import Parts, PolicyService
from serving.settings import ServingSettings, SwapSettings
from serving.spool import Spool
from serving.vllm_engine import VllmEngine
from serving.vllm_options import EngineOptions

DELIVERY_SECONDS = 120.0
MODEL_NAME = "policy"


class DeliveryFailed(RuntimeError):
    """The replica refused a version, or did not say anything in time."""


class MemoryLog:
    """Takes what the spool sends. From the spool's thread; `take` from any."""

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._lock = threading.Lock()

    def send(self, topic: str, events: Sequence[tuple[str, bytes]]) -> Sequence[tuple[int, int]]:  # noqa: ARG002
        with self._lock:
            self._values += [value for _, value in events]
        return [(0, 0)] * len(events)

    def identity(self, topic: str) -> str:  # noqa: ARG002
        return "memory"

    def take(self) -> list[Generation]:
        with self._lock:
            values, self._values = self._values, []
        return [Generation.model_validate_json(value) for value in values]


class Line:
    """Which versions there are, and which one is assigned. The replica calls it from threads."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._loop = asyncio.get_running_loop()
        self._reports: asyncio.Queue[ReplicaReport] = asyncio.Queue()
        self._assigned = 0

    def get(self, version: int) -> PolicyVersion:
        return self._versions.describe(version)

    def live(self) -> PolicyVersion:
        return self._versions.describe(0)

    def register(self, assigned_version: int) -> None:
        self._assigned = assigned_version

    def assigned_version(self) -> int:
        return self._assigned

    def report(self, report: ReplicaReport) -> None:
        self._loop.call_soon_threadsafe(self._reports.put_nowait, report)

    async def deliver(self, version: int) -> dict[str, Any]:
        """Assign `version` and wait until the replica proved it; what it says of the swap. Raises DeliveryFailed."""
        self._assigned = version
        try:
            async with asyncio.timeout(DELIVERY_SECONDS):
                while True:
                    report = await self._reports.get()
                    if report.state == "failed" or report.refused_version == version:
                        raise DeliveryFailed(f"version {version}: {report.detail}")
                    if report.state == "serving" and report.actual_version == version:
                        return report.proof
        except TimeoutError:
            raise DeliveryFailed(f"version {version} was not proved within {DELIVERY_SECONDS:.0f} s") from None


class Replica:
    """Running. `url` answers."""

    def __init__(self, url: str, engine: VllmEngine, line: Line, log: MemoryLog) -> None:
        self.url = url
        self.engine = engine
        self.line = line
        self.log = log
        self._process = psutil.Process()

    def read_memory(self) -> int:
        """Resident bytes of this process and the engine's."""
        total = 0
        for process in [self._process, *self._process.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total


@asynccontextmanager
async def run_replica(
    options: EngineOptions, swap: SwapSettings, versions: Versions, folder: Path
) -> AsyncIterator[Replica]:
    """Start it on the base model; stop it."""
    base = await asyncio.to_thread(describe_base, options.model)
    engine = await VllmEngine.start(options)
    log, line = MemoryLog(), Line(versions)
    service = PolicyService(
        engine,
        Parts(
            serving=ServingSettings(model_name=MODEL_NAME),
            swap=swap,
            lora=swap.mode == "lora",
            base=base,
            base_folder=options.model,
            ids=InferenceIds(b"benchmark" * 4),
            keys={},
            feedback_token_seconds=3600.0,
            spool=Spool(folder / "spool", log, GENERATIONS_TOPIC, unavailable=()),
            versions=line,
            assignments=line,
            database_errors=(),
        ),
    )
    await service.start()
    app: Any = await service.build_asgi()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if serving.done():
                raise RuntimeError("the HTTP server did not start") from serving.exception()
            await asyncio.sleep(0.05)
        yield Replica(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, line, log)
    finally:
        server.should_exit = True
        await serving
        await service.stop()
