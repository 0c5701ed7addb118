"""The composition root of the policy endpoint: settings in, a Ray Serve application out."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve import Application

from feedback.database import ANY_FAULT, open_database
from feedback.kafka_log import KafkaLog
from feedback.log_contract import LogUnavailable, MessageTooLarge
from online_rl.config import Settings
from online_rl.registry import Registry
from serving.artifact import describe_base
from serving.auth import ASGIApp, hash_keys
from serving.inference_ids import InferenceIds, load_or_create_secret
from serving.replica_store import ReplicaStore
from serving.schemas import GENERATIONS_TOPIC
from serving.service import Parts, PolicyService
from serving.spool import Spool, claim_slot
from serving.vllm_engine import VllmEngine
from serving.vllm_options import EngineOptions, runs_on_cpu, set_environment

logger = logging.getLogger(__name__)

MAX_ONGOING = 1024
"""Requests that one replica takes at once; beyond `serving.max_num_seqs` they queue in the engine."""


def policy_application(settings: Settings, bootstrap_servers: str) -> Application:
    """For Ray Serve, at the route prefix ``/v1``; Ray must be connected."""
    resources: dict[str, Any] = {"num_cpus": 1}
    # Asked of the cluster, not of torch: importing that here would cost every start seconds.
    if ray.cluster_resources().get("GPU"):
        resources["num_gpus"] = int(settings.serving.engine_args.get("tensor_parallel_size", 1))
    folders = {
        "data_dir": settings.data_dir.absolute(),
        "models_dir": settings.models_dir.absolute(),
        "auth": settings.auth.model_copy(
            update={
                "signing_key_file": (settings.auth.signing_key_file or settings.data_dir / "signing.key").absolute()
            }
        ),
    }
    deployment: Any = serve.deployment(PolicyReplica)
    deployment = deployment.options(
        name="policy",
        num_replicas=settings.serving.replicas,
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options=resources,
        health_check_period_s=2,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=10,
    )
    return deployment.bind(settings.model_copy(update=folders), bootstrap_servers)


@serve.ingress()
class PolicyReplica:
    """One engine behind Ray Serve."""

    async def __init__(self, settings: Settings, bootstrap_servers: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        self._service = await start_service(settings, bootstrap_servers)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        return await self._service.build_asgi()

    async def check_health(self) -> None:
        self._service.check_health()

    async def __del__(self) -> None:
        service = getattr(self, "_service", None)
        if service is not None:
            await service.stop()


async def start_service(settings: Settings, bootstrap_servers: str) -> PolicyService:
    """Start the engine, load the live version, follow assignments. The caller's event loop is the replica's."""
    number, lock = claim_slot(settings.data_dir / "spool")
    options = engine_options(settings)
    set_environment(options)
    mode = settings.swap.mode
    lora = mode == "lora" or (mode == "auto" and not runs_on_cpu())
    if lora:
        options = with_adapters(options, settings)
    engine_starting = asyncio.create_task(VllmEngine.start(options))
    base = await asyncio.to_thread(describe_base, options.model)
    engine = await engine_starting
    log = KafkaLog(
        bootstrap_servers,
        client_id=f"policy-{number}",
        topic_prefix=settings.kafka.topic_prefix,
        security=settings.kafka.security,
        replication_factor=settings.kafka.replication_factor,
        retention_ms=settings.kafka.retention_ms,
    )
    database = open_database(settings.database_url)
    spool = Spool(
        settings.data_dir / "spool" / f"slot-{number}",
        log,
        GENERATIONS_TOPIC,
        unavailable=LogUnavailable,
        too_large=MessageTooLarge,
        queue=settings.serving.capture_queue,
        max_bytes=settings.serving.spool_mib << 20,
        held=lock,
    )
    service = PolicyService(
        engine,
        Parts(
            serving=settings.serving,
            swap=settings.swap,
            lora=lora,
            base=base,
            base_folder=options.model,
            ids=InferenceIds(load_or_create_secret(_key_file(settings))),
            keys=hash_keys(settings.api_keys),
            feedback_token_seconds=settings.auth.feedback_token_seconds,
            spool=spool,
            versions=Registry(database),
            assignments=ReplicaStore(database, f"policy-{number}"),
            database_errors=ANY_FAULT,
        ),
    )
    await service.start()
    return service


def _key_file(settings: Settings) -> Path:
    return settings.auth.signing_key_file or settings.data_dir / "signing.key"


def engine_options(settings: Settings) -> EngineOptions:
    """What the engine is started with, without adapters."""
    serving = settings.serving
    return EngineOptions(
        model=find_model(settings.model_path),
        model_name=serving.model_name,
        max_model_len=serving.max_model_len,
        max_num_seqs=serving.max_num_seqs,
        kv_cache_gib=serving.kv_cache_gib,
        cpu_threads=serving.cpu_threads,
        extra=serving.engine_args,
    )


def with_adapters(options: EngineOptions, settings: Settings) -> EngineOptions:
    """`options` for `swap.mode` lora: room for the kept versions and one that is being loaded."""
    ranks = (8, 16, 32, 64, 128, 256)
    rank = next((rank for rank in ranks if rank >= settings.learner.lora_rank), ranks[-1])
    return replace(options, adapters=settings.swap.keep_versions + 1, adapter_rank=rank)


def find_model(path: str) -> Path:
    """The folder of the base model; a Hugging Face id is looked up in the local cache and fetched if need be."""
    folder = Path(path)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model"]))
