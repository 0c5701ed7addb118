"""Routes for machines: alive, ready, metrics, and three of vLLM's own that live outside ``/v1``."""

from typing import Any, Literal

import httpx
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from sqlalchemy import Engine

from feedback.schemas import ErrorAnswer, refusals
from online_rl.dashboard.errors import error_body
from online_rl.dashboard.live_status import StatusFeed
from online_rl.dashboard.measured import Limits, read_measured
from online_rl.dashboard.metrics import join_expositions, write_exposition
from online_rl.dashboard.policy_client import PolicyClient


class Readiness(BaseModel):
    """The answer to ``GET /ready``."""

    status: Literal["ready", "not ready"]
    version: int | None = None
    """The policy version that generated the token, where it is known."""
    reason: str | None = None
    """Why it is not ready."""


# What the policy application answers, whatever it is.
_THEIRS: dict[int | str, dict[str, Any]] = {"default": {"description": "the answer of the engine's own route"}}


def probe_routes(engine: Engine, limits: Limits, feed: StatusFeed, policy: PolicyClient) -> APIRouter:
    """The routes, over the status of the database and the policy application."""
    router = APIRouter()

    @router.get("/health", responses={403: {"model": ErrorAnswer}})
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @router.get("/ready", response_model=Readiness, responses={**refusals(), 503: {"model": Readiness}})
    async def ready(request: Request) -> JSONResponse:
        found = await policy.ready(request.headers)
        if found.ready:
            return JSONResponse({"status": "ready", "version": found.version})
        return JSONResponse({"status": "not ready", "reason": found.reason}, status_code=503)

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **refusals()})
    async def metrics(request: Request) -> Response:
        status = (await run_in_threadpool(feed.read)).status
        theirs = await policy.metrics(request.headers)
        measured = await run_in_threadpool(read_measured, engine)
        ours = write_exposition(status, measured, limits, policy_up=theirs is not None)
        text = join_expositions(ours, theirs or "")
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def forward(request: Request) -> Response:
        try:
            answer = await policy.forward(request.method, request.url.path, request.headers, await request.body())
        except httpx.HTTPError as error:
            message = f"the policy application does not answer: {type(error).__name__}; try again shortly"
            return JSONResponse(error_body(message, "service_unavailable"), status_code=503)
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    router.add_api_route("/tokenize", forward, methods=["POST"], responses={**refusals(), **_THEIRS})
    router.add_api_route("/detokenize", forward, methods=["POST"], responses={**refusals(), **_THEIRS})
    router.add_api_route("/version", forward, methods=["GET"], responses={**refusals(), **_THEIRS})
    return router
