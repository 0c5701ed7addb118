"""A feedback token in place of an API key: it lets its holder rate one answer, and nothing else."""

import json
import time
from collections.abc import Callable
from typing import Any

HEADER = b"x-feedback-token"


class FeedbackTokenMiddleware:
    """Pure ASGI. A request with a token goes to `app` past the API keys; any other goes to `with_keys`.

    `check(token, now)` gives the inference id that the token is for, or raises ValueError. Sets
    ``scope["state"]["feedback_token_for"]``.
    """

    def __init__(self, app: Any, with_keys: Any, check: Callable[[str, float], str]) -> None:
        self._app = app
        self._with_keys = with_keys
        self._check = check

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        token = next((value for name, value in scope.get("headers", ()) if name == HEADER), None)
        if scope["type"] != "http" or token is None:
            await self._with_keys(scope, receive, send)
            return
        try:
            inference_id = self._check(token.decode("latin-1"), time.time())
        except ValueError as error:
            await _refuse(send, str(error))
            return
        state = scope.setdefault("state", {})
        state["api_key_id"] = "anonymous"
        state["feedback_token_for"] = inference_id
        await self._app(scope, receive, send)


async def _refuse(send: Any, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_feedback_token"}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
