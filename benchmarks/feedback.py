"""How much feedback one process takes: accepted a second and latency, through uvicorn, durable before 202.

    .venv/bin/python -m benchmarks.feedback --seconds 10 --connections 64 [--database postgresql://...]

The client is a bare keep-alive loop on sockets in a process of its own, so that it does not measure itself.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from feedback import tables
from feedback.app import build_feedback_app
from feedback.database import open_database
from feedback.settings import DatabaseSettings
from online_rl.config import Settings
from serving.inference_ids import InferenceIds, load_or_create_secret


def serve(settings: Settings, port: int) -> None:
    import uvicorn

    uvicorn.run(build_feedback_app(settings), host="127.0.0.1", port=port, log_level="warning", access_log=False)


async def post_until(
    port: int, ids: InferenceIds, deadline: float, latencies: list[float], failures: list[str]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < deadline:
        body = json.dumps({"inference_id": ids.issue(), "value": 1.0, "idempotency_key": ids.issue()}).encode()
        head = f"POST /v1/feedback HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        began = time.perf_counter()
        writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        latencies.append(time.perf_counter() - began)
        if b" 202 " not in answer.split(b"\r\n")[0]:
            failures.append(answer.split(b"\r\n")[0].decode())
    writer.close()


async def load(port: int, ids: InferenceIds, seconds: float, connections: int) -> tuple[dict[str, object], int]:
    latencies: list[float] = []
    failures: list[str] = []
    began = time.perf_counter()
    deadline = began + seconds
    await asyncio.gather(*(post_until(port, ids, deadline, latencies, failures) for _ in range(connections)))
    took = time.perf_counter() - began
    parts = statistics.quantiles(latencies, n=100)
    accepted = len(latencies) - len(failures)
    return {
        "connections": connections,
        "accepted_per_second": round(accepted / took),
        "failed": len(failures),
        "p50_ms": round(parts[49] * 1000, 1),
        "p99_ms": round(parts[98] * 1000, 1),
    }, accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--database")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), database=DatabaseSettings(url=arguments.database))
        engine = open_database(settings.database_url)
        tables.metadata.create_all(engine)
        ids = InferenceIds(load_or_create_secret(Path(folder) / "signing.key"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(settings, port))
        server.start()
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            process = psutil.Process(server.pid)
            for connections in arguments.connections:
                before = sum(process.cpu_times()[:2])
                found, accepted = asyncio.run(load(port, ids, arguments.seconds, connections))
                # What the machine's other work cannot change much.
                found["server_cpu_ms_each"] = round((sum(process.cpu_times()[:2]) - before) / accepted * 1000, 2)
                print(json.dumps(found))
        finally:
            server.terminate()
            server.join()
            engine.dispose()


if __name__ == "__main__":
    main()
