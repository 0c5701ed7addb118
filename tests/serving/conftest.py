"""The policy endpoint as it is deployed: real vLLM behind Ray Serve, the real broker, SQLite. Once a session."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest

import feedback.tables
import online_rl.tables
import serving.tables
from feedback.database import open_database
from feedback.kafka_consumer import LogConsumer
from feedback.kafka_log import KafkaLog
from feedback.settings import DatabaseSettings
from online_rl.config import Settings
from online_rl.registry import Registry
from online_rl.schemas import PolicyVersion, VersionState
from serving.schemas import GENERATIONS_TOPIC, Generation
from serving.settings import ServingSettings, SwapSettings
from tests.feedback.brokers import Broker
from tests.serving.artifacts import Version, Workshop

TOOLS: dict[str, str | int | float | bool] = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
"""What vLLM wants to be told before it takes a request with tools."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Policy:
    """The running endpoint and everything around it that a test may ask."""

    url: str
    settings: Settings
    registry: Registry
    workshop: Workshop
    consumer: LogConsumer
    ready_seconds: float
    generations: dict[str, Generation] = field(default_factory=dict)

    def client(self, **options) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120, **options)

    def async_client(self, **options) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120, **options)

    def generation(self, response_id: str, *, choice: int = 0, prompt: int = 0, seconds: float = 20) -> Generation:
        """The captured generation of a response, from the log."""
        bare = response_id.partition("-")[2] or response_id.partition("_")[2]
        key = f"{bare}/{prompt}/0/{choice}"
        deadline = time.monotonic() + seconds
        while key not in self.generations and time.monotonic() < deadline:
            self.collect()
        return self.generations[key]

    def collect(self, seconds: float = 0.2) -> None:
        for record in self.consumer.poll(1000, seconds):
            generation = Generation.model_validate_json(record.value)
            self.generations[generation.key] = generation

    def publish(self, version: Version, parent: int) -> None:
        self.registry.add_candidate(version.number, parent, str(version.folder), {})

    def settle(self, version: int, seconds: float = 60) -> PolicyVersion:
        """Wait until a candidate is decided."""
        deadline = time.monotonic() + seconds
        while (found := self.registry.get(version)).state is VersionState.CANDIDATE:
            assert time.monotonic() < deadline, f"version {version} is still a candidate"
            time.sleep(0.05)
        return found


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(Path(Settings().model_path), tmp_path_factory.mktemp("versions"))


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory, workshop: Workshop) -> Iterator[Policy]:
    begun = time.monotonic()
    folder = tmp_path_factory.mktemp("policy")
    with Broker() as broker:
        settings = Settings(
            data_dir=folder,
            models_dir=Settings().models_dir.absolute(),
            serving=ServingSettings(port=free_port(), max_model_len=512, engine_args=TOOLS),
            swap=SwapSettings(drain_seconds=2.0),
            database=DatabaseSettings(url=f"sqlite:///{folder}/test.db"),
        )
        yield from run_policy(settings, broker.bootstrap_servers, workshop, begun)


def run_policy(settings: Settings, bootstrap_servers: str, workshop: Workshop, begun: float) -> Iterator[Policy]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_enable_worker_prestart"] = "0"  # noqa: SIM112
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    from serving.app import policy_application
    from serving.deployer import run_deployer

    engine = open_database(settings.database_url)
    for metadata in (online_rl.tables.metadata, feedback.tables.metadata, serving.tables.metadata):
        metadata.create_all(engine)
    registry = Registry(engine)
    registry.ensure_base(settings.model_path)
    log = KafkaLog(bootstrap_servers, client_id="test")
    log.ensure_topics([GENERATIONS_TOPIC])
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=128 << 20,
        log_to_driver=os.environ.get("SHOW_REPLICA_LOGS") == "1",
        namespace="test_serving",
    )
    stop = threading.Event()
    deployer = threading.Thread(target=run_deployer, args=(settings, stop))
    try:
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=settings.serving.port))
        serve.run(policy_application(settings, bootstrap_servers), name="policy", route_prefix="/v1")
        deployer.start()
        yield Policy(
            url=f"http://127.0.0.1:{settings.serving.port}",
            settings=settings,
            registry=registry,
            workshop=workshop,
            consumer=log.consumer(GENERATIONS_TOPIC, group="test", offsets={}),
            ready_seconds=time.monotonic() - begun,
        )
    finally:
        stop.set()
        if deployer.is_alive():
            deployer.join()
        serve.shutdown()
        ray.shutdown()
        log.close()
