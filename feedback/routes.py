"""The HTTP routes: feedback in, the record out. Errors have OpenAI's shape and name the field and the remedy."""

import asyncio
import math
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic_core import from_json
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from feedback.database import UNAVAILABLE, DatabaseUnavailable
from feedback.inbox import Inbox, Submission, new_feedback_id
from feedback.joining import TOKEN_OWNER
from feedback.lookup import find_inference, retract_feedback
from feedback.rate_caps import RateCap
from feedback.schemas import (
    FeedbackAccepted,
    FeedbackBatch,
    FeedbackError,
    FeedbackIn,
    FeedbackResult,
    FeedbackRetracted,
    InferenceRecord,
    refusals,
)
from feedback.settings import FeedbackSettings
from feedback.validation import InvalidFeedback, metric_value, parse_feedback

FEEDBACK_PATH = "/v1/feedback"
INFERENCES_PATH = "/v1/inferences"
MAX_BODY = 256 * 1024
MAX_BATCH_BODY = 8 * 1024 * 1024
MAX_BATCH_ITEMS = 1000
RETRY_AFTER_SECONDS = 1


class InferenceIds(Protocol):
    """Tells our inference ids from others (`serving.inference_ids`)."""

    def parse(self, text: str) -> str | None: ...


class Refusal(Exception):
    """An answer other than 2xx."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = RETRY_AFTER_SECONDS if status == 503 else retry_after
        kind = "invalid_request_error" if status < 500 else "service_unavailable"
        kind = "rate_limit_error" if status == 429 else kind
        self.error = FeedbackError(message=message, type=kind, param=param, code=code)


def _json_body(schema: dict[str, Any]) -> dict[str, Any]:
    """How OpenAPI describes a body that is parsed here and not by FastAPI."""
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


_ITEM = FeedbackIn.model_json_schema()
_BATCH = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": _ITEM, "maxItems": MAX_BATCH_ITEMS}},
    "required": ["items"],
}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """With the header that says when to come again."""
    documented = refusals(*statuses)
    for status in {429, 503} & documented.keys():
        documented[status]["headers"] = _RETRY_AFTER
    return documented


class FeedbackRoutes:
    """What the feedback routes share."""

    def __init__(self, engine: Engine, inbox: Inbox, ids: InferenceIds, settings: FeedbackSettings) -> None:
        self._engine = engine
        self._inbox = inbox
        self._ids = ids
        self._settings = settings
        self._user_cap = RateCap(settings.user_per_minute)
        self._key_cap = RateCap(settings.key_per_minute)
        self.router = APIRouter()
        add = self.router.add_api_route
        add(
            FEEDBACK_PATH,
            self.post,
            methods=["POST"],
            status_code=202,
            response_model=FeedbackAccepted,
            responses={200: {"model": FeedbackAccepted}, **_refusals(404, 409, 413, 422, 429)},
            openapi_extra=_json_body(_ITEM),
        )
        add(
            FEEDBACK_PATH + "/batch",
            self.post_batch,
            methods=["POST"],
            response_model=FeedbackBatch,
            responses=_refusals(413, 422),
            openapi_extra=_json_body(_BATCH),
        )
        add(
            FEEDBACK_PATH + "/{feedback_id}",
            self.retract,
            methods=["DELETE"],
            response_model=FeedbackRetracted,
            responses=_refusals(404, 422),
        )

    async def post(self, request: Request) -> JSONResponse:
        """Accept one feedback. 202 once it is durable; 200 where it was accepted before under its idempotency key."""
        body = await read_body(request, MAX_BODY)
        result = await self._take(body, request)
        return JSONResponse({"feedback_id": result.feedback_id}, status_code=result.status)

    async def post_batch(self, request: Request) -> JSONResponse:
        """Accept many, each for itself: `{"items": [...]}`. 200 with one result an item, in order."""
        body = await read_body(request, MAX_BATCH_BODY)
        try:
            items = from_json(body)["items"]
        except (ValueError, KeyError, TypeError):
            raise Refusal(422, "invalid_body", 'the body must be JSON: {"items": [feedback, ...]}', "items") from None
        if not isinstance(items, list) or len(items) > MAX_BATCH_ITEMS:
            raise Refusal(422, "invalid_body", f"items must be a list of at most {MAX_BATCH_ITEMS} feedback", "items")
        results = await asyncio.gather(*(self._attempt(item, request) for item in items))
        return JSONResponse({"results": [result.model_dump(exclude_none=True) for result in results]})

    async def retract(self, feedback_id: str, request: Request) -> FeedbackRetracted:
        """Take a feedback back; what was released with it stays released."""
        owner, _ = identify(request)
        # PostgreSQL takes no NUL, not even to compare with.
        known = "\0" not in feedback_id
        found = await run_in_threadpool(retract_feedback, self._engine, feedback_id, owner) if known else None
        if found is None:
            raise Refusal(
                404, "feedback_not_found", f"there is no feedback {feedback_id[:80]!r} of yours", "feedback_id"
            )
        return found

    async def _attempt(self, item: object, request: Request) -> FeedbackResult:
        try:
            return await self._take(item, request)
        except Refusal as refusal:
            return FeedbackResult(status=refusal.status, error=refusal.error)
        except DatabaseUnavailable as error:
            return FeedbackResult(status=503, error=unavailable(error).error)

    async def _take(self, raw: object, request: Request) -> FeedbackResult:
        owner, token_inference = identify(request)
        try:
            item = parse_feedback(raw)
            value = metric_value(item, self._settings.metrics)
        except InvalidFeedback as error:
            raise Refusal(422, "invalid_feedback", str(error), error.field) from None
        if item.inference_id is not None:
            inference_id = self._ids.parse(item.inference_id)
            if inference_id is None:
                raise not_ours()
            item = item.model_copy(update={"inference_id": inference_id})
        if token_inference is not None and item.inference_id != token_inference:
            raise Refusal(403, "wrong_token", "the feedback token belongs to another answer", "inference_id")
        if item.dryrun:
            return FeedbackResult(status=202, feedback_id=new_feedback_id())
        self._bound_rate(owner, item.user)
        outcome = await self._inbox.submit(Submission(item, value, owner))
        if outcome.kind == "foreign":
            raise not_ours()
        if outcome.kind == "conflict":
            message = "this idempotency_key was used for another feedback; use a new key for new content"
            raise Refusal(409, "idempotency_conflict", message, "idempotency_key")
        return FeedbackResult(status=202 if outcome.kind == "stored" else 200, feedback_id=outcome.feedback_id)

    def _bound_rate(self, owner: str, user: str | None) -> None:
        """Raises Refusal. The holder of a feedback token is a user, under nobody's key."""
        with_token = owner.startswith(TOKEN_OWNER)
        wait = self._user_cap.take((owner, user)) if with_token or user is not None else 0.0
        if wait:
            name = "user_per_minute"
        elif not with_token and (wait := self._key_cap.take(owner)):
            name = "key_per_minute"
        else:
            return
        message = f"more feedback than feedback.{name} allows; send it again in {math.ceil(wait)} s"
        raise Refusal(429, "rate_limited", message, retry_after=wait)


def inference_routes(engine: Engine, ids: InferenceIds) -> APIRouter:
    """``GET /v1/inferences/{id}``."""
    router = APIRouter()

    @router.get(INFERENCES_PATH + "/{inference_id}", responses=_refusals(404, 422))
    async def get_inference(inference_id: str, request: Request) -> InferenceRecord:
        """What was asked and answered, by which weights, what was said about it, and what it trained."""
        bare = ids.parse(inference_id)
        if bare is None:
            raise not_ours()
        found = await run_in_threadpool(find_inference, engine, bare, request.state.api_key_id)
        if found is None:
            message = "no inference with this id is stored for this key; a new one appears within seconds"
            raise Refusal(404, "inference_not_stored", message, "inference_id")
        return found

    return router


def add_error_handlers(app: FastAPI) -> None:
    """Give every failure OpenAI's error shape; a database that is down is 503 with Retry-After."""

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        refusal = error if isinstance(error, Refusal) else unavailable(error)
        headers = None if refusal.retry_after is None else {"retry-after": str(math.ceil(refusal.retry_after))}
        return JSONResponse({"error": refusal.error.model_dump()}, status_code=refusal.status, headers=headers)

    async def refuse_route(_: Request, error: Any) -> JSONResponse:
        refusal = Refusal(error.status_code, "refused", str(error.detail))
        return JSONResponse({"error": refusal.error.model_dump()}, error.status_code, error.headers)

    for kind in (Refusal, DatabaseUnavailable, *UNAVAILABLE):
        app.add_exception_handler(kind, refuse)
    app.add_exception_handler(HTTPException, refuse_route)


def unavailable(error: Exception) -> Refusal:
    detail = str(error) if isinstance(error, DatabaseUnavailable) else type(error).__name__
    message = f"the database is not available, nothing was stored; try again with the same idempotency_key ({detail})"
    return Refusal(503, "database_unavailable", message)


def not_ours() -> Refusal:
    message = "this id was not issued here, or not to this key; use the `id` of a response or its x-inference-id header"
    return Refusal(404, "inference_not_found", message, "inference_id")


def identify(request: Request) -> tuple[str, str | None]:
    """(owner, the inference that a feedback token is for, or None with an API key)."""
    token_inference = getattr(request.state, "feedback_token_for", None)
    owner = request.state.api_key_id if token_inference is None else TOKEN_OWNER + token_inference
    return owner, token_inference


async def read_body(request: Request, limit: int) -> bytes:
    """Raises Refusal where the body is larger than `limit` bytes, without reading further."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Refusal(413, "body_too_large", f"the body may have at most {limit} bytes", "body")
    return bytes(body)
