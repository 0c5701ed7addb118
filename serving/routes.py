"""Which of the engine's routes are served, which scope each needs, and where requests arrive.

What is not listed does not exist: the routes of the engine that load adapters or weights, sleep or call workers are
not reachable whatever the engine's own settings are.
"""

from serving.auth import ASGIApp, Receive, Scope, Send, send_error

INFERENCE_ROUTES = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
_SERVED = {
    **{("POST", path): "inference" for path in INFERENCE_ROUTES},
    ("POST", "/v1/messages/count_tokens"): "inference",
    ("GET", "/v1/models"): "inference",
    ("POST", "/tokenize"): "inference",
    ("POST", "/detokenize"): "inference",
    ("GET", "/version"): "inference",
    ("GET", "/ready"): None,
    ("GET", "/health"): None,
    ("GET", "/metrics"): "admin",
}
_OUTSIDE_V1 = frozenset(path for _, path in _SERVED if not path.startswith("/v1/"))


def is_inference(method: str, path: str) -> bool:
    """Whether the request samples from the policy and is captured."""
    return method == "POST" and path in INFERENCE_ROUTES


def scope_for(method: str, path: str) -> str | None:
    """The scope that the route needs; None where it needs none. Unknown routes need `inference`."""
    return _SERVED.get((method, path), "inference")


def engine_path(path: str) -> str:
    """`path` as the engine's own application knows it: ``/v1/tokenize`` is its ``/tokenize``."""
    short = path.removeprefix("/v1")
    return short if short in _OUTSIDE_V1 else path


class RouteShim:
    """Undoes the route prefix that Ray Serve announces as `root_path`, and hides every route that is not listed."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        path = engine_path(scope["path"])
        allowed = {method for method, served in _SERVED if served == path}
        method = scope["method"]
        if not allowed:
            await send_error(send, 404, f"There is no route {scope['path']}.", "invalid_request_error", "not_found")
        elif method not in allowed and method != "OPTIONS":
            message = f"{scope['path']} does not take {method}."
            await send_error(send, 405, message, "invalid_request_error", "method_not_allowed")
        else:
            await self.app({**scope, "path": path, "raw_path": path.encode(), "root_path": ""}, receive, send)
