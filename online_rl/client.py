"""The typed Python client: post feedback, take it back, look an answer up. Ask for answers with any OpenAI client.

    with OnlineRL("http://127.0.0.1:8000") as client:
        client.feedback(inference_id=completion.id, value=1.0)

`AsyncOnlineRL` is the same with ``await``. What cannot be delivered at once (the service restarts, its database is
away) is tried again under the same idempotency key, so a feedback that was stored although its answer got lost is
not stored twice.
"""

import asyncio
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import httpx
from pydantic import BaseModel

from feedback.schemas import FeedbackAccepted, FeedbackBatch, FeedbackError, FeedbackIn, FeedbackRetracted
from feedback.schemas import InferenceRecord as InferenceRecord

RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 8.0


class ServiceError(Exception):
    """The service refused, or could not be reached in all attempts.

    `status` is the HTTP status (None: no connection), `code` and `param` (the field) come from the error's body.
    """

    def __init__(self, message: str, *, status: int | None, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class _Call(BaseModel):
    """One request, the same in each attempt."""

    method: str
    path: str
    body: dict[str, Any] | None = None


def _feedback_call(item: FeedbackIn) -> _Call:
    return _Call(method="POST", path="/v1/feedback", body=_with_key(item))


def _batch_call(items: Sequence[FeedbackIn]) -> _Call:
    return _Call(method="POST", path="/v1/feedback/batch", body={"items": [_with_key(item) for item in items]})


def _with_key(item: FeedbackIn) -> dict[str, Any]:
    body = item.model_dump(mode="json", exclude_none=True)
    return {"idempotency_key": uuid.uuid4().hex, **body}


def _pauses(retries: int) -> Iterator[float]:
    """Seconds before each further attempt: doubling, with jitter so that clients do not come back together."""
    for attempt in range(retries):
        yield min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)


def _retry_after(response: httpx.Response) -> float:
    value = response.headers.get("retry-after", "")
    return min(LONGEST_PAUSE, float(value)) if value.isdigit() else 0.0


def _fail(response: httpx.Response) -> NoReturn:
    try:
        error = FeedbackError.model_validate(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        raise ServiceError(f"HTTP {response.status_code}", status=response.status_code) from None
    raise ServiceError(error.message, status=response.status_code, code=error.code, param=error.param)


def _unreachable(base_url: httpx.URL, error: httpx.TransportError) -> NoReturn:
    message = f"no answer from {base_url}: {error or type(error).__name__}; is the service running there?"
    raise ServiceError(message, status=None) from error


def _settings(base_url: str, api_key: str | None, feedback_token: str | None, timeout: float) -> dict[str, Any]:
    headers: dict[str, str] = {}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    if feedback_token is not None:
        headers["x-feedback-token"] = feedback_token
    # OpenAI clients are given a base URL that ends in /v1; the same one works here.
    return {"base_url": base_url.rstrip("/").removesuffix("/v1"), "headers": headers, "timeout": timeout}


class OnlineRL:
    """Blocking client. `retries` is the number of attempts after the first."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        feedback_token: str | None = None,
        timeout: float = 30.0,
        retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**_settings(base_url, api_key, feedback_token, timeout), transport=transport)
        self._retries = retries

    def feedback(self, **item: Any) -> FeedbackAccepted:
        """Post one feedback; the keywords are the fields of `feedback.schemas.FeedbackIn`.

        Raises pydantic.ValidationError for what cannot be one, ServiceError for what the service refuses.
        """
        return FeedbackAccepted.model_validate(self._send(_feedback_call(FeedbackIn(**item))))

    def feedback_batch(self, items: Sequence[FeedbackIn]) -> FeedbackBatch:
        """Post many at once, each accepted or refused for itself. Raises ServiceError."""
        return FeedbackBatch.model_validate(self._send(_batch_call(items)))

    def retract(self, feedback_id: str) -> FeedbackRetracted:
        """Take a feedback back. Raises ServiceError."""
        return FeedbackRetracted.model_validate(self._send(_Call(method="DELETE", path=f"/v1/feedback/{feedback_id}")))

    def inference(self, inference_id: str) -> InferenceRecord:
        """What is on record about one answer. Raises ServiceError (404 for the moment until it is stored)."""
        return InferenceRecord.model_validate(self._send(_Call(method="GET", path=f"/v1/inferences/{inference_id}")))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, call: _Call) -> Any:
        pauses = _pauses(self._retries)
        while True:
            pause = next(pauses, None)
            try:
                response = self._http.request(call.method, call.path, json=call.body)
            except httpx.TransportError as error:
                if pause is None:
                    _unreachable(self._http.base_url, error)
                time.sleep(pause)
                continue
            if response.is_success:
                return response.json()
            if pause is None or response.status_code not in RETRIED_STATUSES:
                _fail(response)
            time.sleep(max(pause, _retry_after(response)))


class AsyncOnlineRL:
    """The same for asyncio. `retries` is the number of attempts after the first."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        feedback_token: str | None = None,
        timeout: float = 30.0,
        retries: int = 5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**_settings(base_url, api_key, feedback_token, timeout), transport=transport)
        self._retries = retries

    async def feedback(self, **item: Any) -> FeedbackAccepted:
        """As `OnlineRL.feedback`."""
        return FeedbackAccepted.model_validate(await self._send(_feedback_call(FeedbackIn(**item))))

    async def feedback_batch(self, items: Sequence[FeedbackIn]) -> FeedbackBatch:
        """As `OnlineRL.feedback_batch`."""
        return FeedbackBatch.model_validate(await self._send(_batch_call(items)))

    async def retract(self, feedback_id: str) -> FeedbackRetracted:
        """As `OnlineRL.retract`."""
        call = _Call(method="DELETE", path=f"/v1/feedback/{feedback_id}")
        return FeedbackRetracted.model_validate(await self._send(call))

    async def inference(self, inference_id: str) -> InferenceRecord:
        """As `OnlineRL.inference`."""
        call = _Call(method="GET", path=f"/v1/inferences/{inference_id}")
        return InferenceRecord.model_validate(await self._send(call))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, call: _Call) -> Any:
        pauses = _pauses(self._retries)
        while True:
            pause = next(pauses, None)
            try:
                response = await self._http.request(call.method, call.path, json=call.body)
            except httpx.TransportError as error:
                if pause is None:
                    _unreachable(self._http.base_url, error)
                await asyncio.sleep(pause)
                continue
            if response.is_success:
                return response.json()
            if pause is None or response.status_code not in RETRIED_STATUSES:
                _fail(response)
            await asyncio.sleep(max(pause, _retry_after(response)))
