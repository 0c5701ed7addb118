"""One ASGI middleware a request: reads our headers, gives the request its id, and writes our response headers.

The response's start is held until the engine's first output, because only then the version that sampled the first
token is known, and with it what the route streams before (``/v1/responses`` tells that the response was created).
Nothing is held after that, so streaming stays streaming.
"""

import asyncio
import time
from collections.abc import Callable

from serving.auth import ANONYMOUS, ASGIApp, Message, Receive, Scope, Send, send_error
from serving.context import InvalidHeader, RequestContext, current_request, decode_header, read_headers
from serving.inference_ids import InferenceIds


class RequestMiddleware:
    """Wraps the engine's application.

    `captured(method, path)` says which requests are inferences; the others pass untouched. `on_finished(status)` is
    called once an inference ended, with 499 when the client went away first and 500 when the engine failed midway.
    `abandon(ids)` is called with the engine's ids of what still runs then: Ray Serve cancels the route's task when the
    client goes away, and a handler that the route runs in a task of its own would generate to the end for nobody.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        ids: InferenceIds,
        captured: Callable[[str, str], bool],
        feedback_token_seconds: float,
        on_finished: Callable[[int], None] = lambda _: None,
        abandon: Callable[[frozenset[str]], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.app = app
        self._ids = ids
        self._captured = captured
        self._feedback_token_seconds = feedback_token_seconds
        self._on_finished = on_finished
        self._abandon = abandon
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._captured(scope["method"], scope["path"]):
            await self.app(scope, receive, send)
            return
        now = self._clock()
        context = RequestContext(
            inference_id=self._ids.issue(),
            created_at=now,
            api_key_id=scope.get("state", {}).get("api_key_id", ANONYMOUS),
        )
        try:
            read_headers(context, {key.decode("latin-1"): decode_header(value) for key, value in scope["headers"]})
        except InvalidHeader as error:
            await send_error(send, 422, str(error), "invalid_request_error", "invalid_header")
            return
        # The engine's routes take the response's id from this header, so the client's own must not reach them.
        others = [(key, value) for key, value in scope["headers"] if key != b"x-request-id"]
        scope = {**scope, "headers": [*others, (b"x-request-id", context.inference_id.encode())]}
        response = _HeldResponse(send, lambda: context.engine_answered, lambda: self._response_headers(context, now))
        token = current_request.set(context)
        status = 500
        try:
            await self.app(scope, receive, response.send)
            status = response.status or 499
            if context.engine_failed and status < 400:  # it failed midway; else the status sent says whose fault it was
                status = 500
        except asyncio.CancelledError:  # how Ray Serve says that the client went away
            status = 499
            raise
        finally:
            current_request.reset(token)
            context.close()
            if context.generating:
                self._abandon(frozenset(context.generating))
            self._on_finished(status)

    def _response_headers(self, context: RequestContext, now: float) -> list[tuple[bytes, bytes]]:
        if context.response_id is None:  # refused before the engine was asked: there is no inference to name
            return []
        token = self._ids.feedback_token(context.inference_id, now + self._feedback_token_seconds)
        headers = [
            (b"x-inference-id", context.response_id.encode()),
            (b"x-episode-id", (context.episode_id or context.inference_id).encode("utf-8")),
            (b"x-feedback-token", token.encode()),
        ]
        if context.policy_version is not None:
            headers.append((b"x-policy-version", str(context.policy_version).encode()))
        return headers


class _HeldResponse:
    """Passes a response on, all of it in order, from when `ready()` or at its end."""

    def __init__(self, send: Send, ready: Callable[[], bool], headers: Callable[[], list[tuple[bytes, bytes]]]) -> None:
        self._send = send
        self._ready = ready
        self._headers = headers
        self._start: Message | None = None
        self._held: list[Message] = []
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._start = message
            return
        if self._start is not None:
            if message.get("more_body") and not self._ready():
                self._held.append(message)
                return
            start, self._start = self._start, None
            await self._send({**start, "headers": [*start.get("headers", ()), *self._headers()]})
            held, self._held = self._held, []
            for earlier in held:
                await self._send(earlier)
        await self._send(message)
