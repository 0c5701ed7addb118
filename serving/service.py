"""One replica of the policy endpoint, put together: engine, capture, spool, swap. Knows neither Ray nor Kafka."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.responses import JSONResponse
from prometheus_client import REGISTRY

from online_rl.schemas import ADAPTER, MERGED, PolicyVersion
from serving.aliases import UnknownModel, parse_alias
from serving.artifact import Artifact, BaseModel, base_artifact, verify_artifact
from serving.auth import ApiKeyMiddleware, ASGIApp
from serving.capture import Capture, enter_gate
from serving.context import InvalidBody, RequestContext, current_request
from serving.gate import Gate
from serving.headers import RequestMiddleware
from serving.inference_ids import InferenceIds
from serving.metrics import RequestCounts, ServingCollector, Snapshot
from serving.refusal import Refusal, unknown_model
from serving.replica import Assignments, Replica, Versions
from serving.replica_store import ReplicaCounts
from serving.routes import RouteShim, is_inference, scope_for
from serving.schemas import Generation
from serving.settings import ServingSettings, SwapSettings
from serving.spool import Spool
from serving.swap import AdapterSwap, InPlaceSwap
from serving.vllm_engine import VllmEngine
from serving.vllm_routes import list_versions, observe_requests
from serving.weight_labels import WeightLabels

logger = logging.getLogger(__name__)

READY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the composition root provides."""

    serving: ServingSettings
    swap: SwapSettings
    lora: bool
    base: BaseModel
    base_folder: Path
    ids: InferenceIds
    keys: dict[str, frozenset[str]]
    feedback_token_seconds: float
    spool: Spool
    versions: Versions
    assignments: Assignments
    database_errors: tuple[type[Exception], ...]


def in_share(context: RequestContext, share: float) -> bool:
    """Whether the request's episode (or itself) falls into the share that may be trained on; the same for all turns."""
    name = context.episode_id or context.inference_id
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") < share * 2**32


class PolicyService:
    """Everything of one replica that lives in its event loop."""

    def __init__(self, engine: VllmEngine, parts: Parts) -> None:
        self._engine = engine
        self._parts = parts
        self._requests = RequestCounts()
        self._gate = Gate()
        self._labels = WeightLabels()
        name = parts.serving.model_name
        self._swap: InPlaceSwap | AdapterSwap = (
            AdapterSwap(engine, keep=parts.swap.keep_versions, tolerance=parts.swap.probe_tolerance, model_name=name)
            if parts.lora
            else InPlaceSwap(
                engine,
                self._gate,
                self._labels,
                drain_seconds=parts.swap.drain_seconds,
                tolerance=parts.swap.probe_tolerance,
                model_name=name,
            )
        )
        self._capture: Capture | None = None
        self._replica = Replica(
            self._swap,
            parts.versions,
            parts.assignments,
            verify=self._verify,
            counts=self._counts,
            unavailable=parts.database_errors,
            poll_seconds=parts.swap.poll_seconds,
        )
        self._loop_task: asyncio.Task[None] | None = None
        self._aborting: set[asyncio.Task[None]] = set()
        self._collector = ServingCollector(self._requests, self._snapshot)

    async def start(self) -> None:
        """Load the live version and begin to follow assignments. Raises what `Replica.load_first` raises."""
        self._engine.intercept(self._wrap_generate, self._on_abort)
        if self._parts.lora:
            label = self._labels.new(0)
            await self._engine.set_weight_label(label)
            self._labels.decide(label, proved=True)
        await self._replica.load_first()
        self._parts.spool.start()
        self._loop_task = asyncio.create_task(self._replica.run())
        REGISTRY.register(self._collector)

    async def build_asgi(self) -> ASGIApp:
        """The application: vLLM's own, behind our routes, keys and headers."""
        app = await self._engine.build_app()
        observe_requests(app, self._before_request, takes_adapters=self._engine.takes_adapters)
        list_versions(app, self._cards)
        app.add_api_route("/ready", self._ready, methods=["GET"], include_in_schema=False)
        requests = RequestMiddleware(
            app,
            ids=self._parts.ids,
            captured=is_inference,
            feedback_token_seconds=self._parts.feedback_token_seconds,
            on_finished=self._requests.add,
            abandon=self._abandon,
        )
        return RouteShim(ApiKeyMiddleware(requests, self._parts.keys, scope_for))

    def check_health(self) -> None:
        """Raise RuntimeError when the replica must be replaced."""
        if self._engine.dead:
            raise RuntimeError("the engine is dead")
        if self._replica.unusable is not None:
            raise RuntimeError(self._replica.unusable)
        if self._loop_task is not None and self._loop_task.done():
            raise RuntimeError("the replica follows no assignments any more") from self._loop_task.exception()

    async def stop(self) -> None:
        if self._loop_task is not None:
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
        with contextlib.suppress(KeyError):
            REGISTRY.unregister(self._collector)
        await asyncio.to_thread(self._parts.spool.close)
        self._engine.stop()

    def _wrap_generate(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        self._capture = Capture(
            generate,
            self._keep,
            gate=self._gate,
            labels=self._labels,
            versions=self._engine,
            model_name=self._parts.serving.model_name,
            in_train_share=lambda context: in_share(context, self._parts.serving.train_share),
        )
        return self._capture.generate

    def _on_abort(self, request_id: str, sampled: Any) -> None:
        assert self._capture is not None
        self._capture.on_abort(request_id, sampled)

    def _abandon(self, request_ids: frozenset[str]) -> None:
        task = asyncio.create_task(self._engine.abort(request_ids))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    def _keep(self, generation: Generation) -> None:
        self._parts.spool.put(generation.key, generation.model_dump_json().encode())

    async def _before_request(self, request: Any) -> Refusal | None:
        """Take in a parsed request and resolve its model's alias, or say why not."""
        context = current_request.get()
        if context is None:
            return None
        try:
            context.take_body(request)
        except InvalidBody as error:
            return Refusal(str(error), error.param)
        name = self._parts.serving.model_name
        try:
            version = parse_alias(request.model, name)
        except UnknownModel as error:
            return unknown_model(str(error))
        await enter_gate(context, self._gate)
        held = self._swap.hold(version)
        if held is None:
            servable = ", ".join(f"{name}@v{artifact.version}" for artifact in self._swap.servable())
            return unknown_model(f"The model `{request.model}` is not loaded here. Servable now: `{name}`, {servable}.")
        request.model, give_back = held
        if give_back is not None:
            context.holds.append(give_back)
        return None

    def _cards(self) -> list[tuple[str, str | None, str]]:
        name = self._parts.serving.model_name
        return [
            (
                f"{name}@v{artifact.version}",
                None if artifact.parent is None else f"{name}@v{artifact.parent}",
                str(artifact.adapter if self._parts.lora and artifact.adapter else artifact.weights),
            )
            for artifact in self._swap.servable()
        ]

    async def _ready(self) -> JSONResponse:
        """Ready means: a token was generated just now."""
        try:
            self.check_health()
            await self._generate_one()
        except Exception as error:
            logger.exception("not ready")
            return JSONResponse({"ready": False, "reason": f"{type(error).__name__}: {error}"}, status_code=503)
        version = self._swap.version
        return JSONResponse({"ready": True, "version": version}, headers={"x-policy-version": str(version)})

    async def _generate_one(self) -> None:
        """One token from what `policy` stands for, as a client's request would get it. Raises what went wrong."""
        name = self._parts.serving.model_name
        held = self._swap.hold(None)
        if held is None:
            raise RuntimeError("no version is loaded")
        served, give_back = held
        try:
            if served not in (name, *self._engine.routable()):
                raise RuntimeError(f"the engine's routes know no {served}")
            async with asyncio.timeout(READY_SECONDS):
                await self._engine.generate_token([self._engine.vocabulary_start], None if served == name else served)
        finally:
            if give_back is not None:
                give_back()

    def _verify(self, wanted: PolicyVersion) -> Artifact:
        if wanted.version == 0:
            return base_artifact(self._parts.base_folder)
        needs = ADAPTER if self._parts.lora else MERGED
        return verify_artifact(Path(wanted.artifact), wanted.version, self._parts.base, needs=needs)

    def _counts(self) -> ReplicaCounts:
        capture, spool = self._capture, self._parts.spool.counts
        return ReplicaCounts(
            requests=self._requests.total,
            failed_requests=self._requests.failed,
            captured=0 if capture is None else capture.captured,
            capture_failures=0 if capture is None else capture.failed,
            spool_dropped=spool.dropped + spool.refused,
        )

    def _snapshot(self) -> Snapshot:
        counts, spool = self._counts(), self._parts.spool.counts
        return Snapshot(
            version=self._swap.version,
            running=self._gate.running,
            waiting_at_gate=self._gate.waiting,
            swap_seconds=self._replica.last_swap_seconds,
            swaps=self._replica.swaps,
            spool_bytes=self._parts.spool.waiting_bytes,
            spool_unsent_bytes=self._parts.spool.unsent_bytes,
            log_available=self._parts.spool.log_available,
            counters={
                "generations_captured": counts.captured,
                "capture_failures": counts.capture_failures,
                "generations_spooled": spool.spooled,
                "generations_sent": spool.sent,
                "generations_dropped": spool.dropped,
                "generations_refused": spool.refused,
                "failed_requests": counts.failed_requests,
            },
        )
