"""API keys: who calls, and whether the key's scopes allow the route. One pure ASGI middleware for every application."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from serving.web_pages import refuse_web_page

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

ANONYMOUS = "anonymous"


def hash_keys(api_keys: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """Settings' `api_keys` (key → scopes) as SHA-256 of the key → scopes, so that no process holds plain keys."""
    return {hashlib.sha256(key.encode()).hexdigest(): frozenset(scopes) for key, scopes in api_keys.items()}


def _presented_key(scope: Scope) -> str | None:
    """The key of ``Authorization: Bearer``, or of ``x-api-key`` as Anthropic clients send it."""
    found: str | None = None
    for name, value in scope.get("headers", ()):
        if name == b"authorization":
            scheme, _, credentials = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                return credentials.strip()
        elif name == b"x-api-key":
            found = value.decode("latin-1").strip()
    return found


async def send_error(send: Send, status: int, message: str, kind: str, code: str) -> None:
    """Answer with an error in OpenAI's shape."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class ApiKeyMiddleware:
    """Lets a request through when its key has the scope that `scope_for(method, path)` names.

    `scope_for` gives None for what needs no key. Sets ``scope["state"]["api_key_id"]``: the first 16 hexadecimal
    digits of the key's SHA-256, or ``anonymous``. With no keys configured everything passes as ``anonymous``, except
    what a web page of somebody else may have sent.
    """

    def __init__(
        self, app: ASGIApp, keys: Mapping[str, frozenset[str]], scope_for: Callable[[str, str], str | None]
    ) -> None:
        self.app = app
        self._keys = keys
        self._scope_for = scope_for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["api_key_id"] = ANONYMOUS
        method = scope.get("method", "CONNECT")  # a websocket can do anything
        if not self._keys and (refusal := refuse_web_page(method, scope.get("headers", ()))):
            code, message = refusal
            await self._refuse(scope, send, 403, message, "permission_error", code)
            return
        if self._keys:
            needed = self._scope_for(scope.get("method", "GET"), scope["path"])
            key = _presented_key(scope)
            digest = hashlib.sha256(key.encode()).hexdigest() if key else None
            scopes = self._keys.get(digest) if digest else None
            if scopes is not None and digest is not None:
                state["api_key_id"] = digest[:16]
            if needed is not None and (scopes is None or needed not in scopes):
                await self._deny(scope, send, needed, key, scopes)
                return
        await self.app(scope, receive, send)

    async def _deny(
        self, scope: Scope, send: Send, needed: str, key: str | None, scopes: frozenset[str] | None
    ) -> None:
        if not key:
            message = "No API key was given. Send it as `Authorization: Bearer <key>`."
            await self._refuse(scope, send, 401, message, "invalid_request_error", "missing_api_key")
        elif scopes is None:
            message = "The API key is not known here."
            await self._refuse(scope, send, 401, message, "invalid_request_error", "invalid_api_key")
        else:
            message = f"The API key lacks the scope `{needed}` that this route needs."
            await self._refuse(scope, send, 403, message, "permission_error", "insufficient_scope")

    async def _refuse(self, scope: Scope, send: Send, status: int, message: str, kind: str, code: str) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send_error(send, status, message, kind, code)
