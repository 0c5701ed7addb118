"""The feedback service's two Ray Serve applications, and the same as plain ASGI apps.

Each replica is a process of its own, apart from the policy's, so that feedback is taken while an engine restarts.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from starlette.middleware.cors import CORSMiddleware

from feedback.database import open_database
from feedback.inbox import Inbox
from feedback.routes import FeedbackRoutes, add_error_handlers, inference_routes
from feedback.token_auth import FeedbackTokenMiddleware
from online_rl.config import Settings
from serving.auth import ApiKeyMiddleware, hash_keys
from serving.inference_ids import InferenceIds, load_or_create_secret

TITLE = "Online RL"


class FullPath:
    """Ray Serve mounts an application under its prefix; the routes here are written out in full."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            prefix = scope.get("root_path", "")
            path = scope["path"] if scope["path"].startswith(prefix) else prefix + scope["path"]
            scope = dict(scope, path=path, root_path="")
        await self._app(scope, receive, send)


def build_feedback_app(settings: Settings) -> Any:
    """The ASGI app of ``/v1/feedback``."""
    ids = _inference_ids(settings)
    engine = open_database(settings.database_url)
    inbox = Inbox(engine)

    @asynccontextmanager
    async def until_shutdown(_: FastAPI) -> AsyncIterator[None]:
        yield
        inbox.close()
        engine.dispose()

    urls = {"docs_url": "/v1/feedback/docs", "openapi_url": "/v1/feedback/openapi.json", "redoc_url": None}
    app = FastAPI(title=f"{TITLE} feedback", lifespan=until_shutdown, **urls)
    app.include_router(FeedbackRoutes(engine, inbox, ids, settings.feedback).router)
    add_error_handlers(app)
    keyed = ApiKeyMiddleware(app, hash_keys(settings.api_keys), lambda _method, _path: "feedback")
    # Any origin: what a page may do, it may do by the key or token it sends, never by who its visitor is. Without keys
    # `ApiKeyMiddleware` refuses pages of other machines that send no token.
    return CORSMiddleware(
        FullPath(FeedbackTokenMiddleware(app, keyed, ids.check_token)),
        allow_origins=["*"],
        allow_methods=["POST", "DELETE"],
        allow_headers=["authorization", "content-type", "x-feedback-token"],
    )


def build_inferences_app(settings: Settings) -> Any:
    """The ASGI app of ``/v1/inferences``."""
    ids = _inference_ids(settings)
    urls = {"docs_url": "/v1/inferences/docs", "openapi_url": "/v1/inferences/openapi.json", "redoc_url": None}
    app = FastAPI(title=f"{TITLE} look-up", **urls)
    app.include_router(inference_routes(open_database(settings.database_url), ids))
    add_error_handlers(app)
    return FullPath(ApiKeyMiddleware(app, hash_keys(settings.api_keys), lambda _method, _path: "inference"))


def feedback_application(settings: Settings) -> Application:
    """For Ray Serve, at the route prefix ``/v1/feedback``."""
    return _application("feedback", build_feedback_app, settings)


def inferences_application(settings: Settings) -> Application:
    """For Ray Serve, at the route prefix ``/v1/inferences``."""
    return _application("inferences", build_inferences_app, settings)


def _application(name: str, build: Any, settings: Settings) -> Application:
    @serve.deployment(name=name, num_replicas=1, max_ongoing_requests=512, ray_actor_options={"num_cpus": 0.05})
    @serve.ingress()
    class Replica:
        def __init__(self, settings: Settings) -> None:
            self._settings = settings

        def __serve_build_asgi_app__(self) -> Any:
            return build(self._settings)

    # A replica's working folder is another one.
    key_file = _signing_key_file(settings).absolute()
    places = {
        "data_dir": settings.data_dir.absolute(),
        "auth": settings.auth.model_copy(update={"signing_key_file": key_file}),
    }
    return Replica.bind(settings.model_copy(update=places))


def _signing_key_file(settings: Settings) -> Path:
    return settings.auth.signing_key_file or settings.data_dir / "signing.key"


def _inference_ids(settings: Settings) -> InferenceIds:
    return InferenceIds(load_or_create_secret(_signing_key_file(settings)))
