"""The operations application as plain ASGI: health, metrics, admin routes and the page, with their access rules."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy import Engine
from starlette.exceptions import HTTPException

from feedback.database import UNAVAILABLE
from online_rl.config import Settings
from online_rl.dashboard.admin import admin_routes
from online_rl.dashboard.deliveries import RegistryDeliveries
from online_rl.dashboard.errors import error_body
from online_rl.dashboard.lineage import NothingKnown
from online_rl.dashboard.live_status import StatusFeed
from online_rl.dashboard.measured import Limits
from online_rl.dashboard.policy_client import PolicyClient
from online_rl.dashboard.probes import probe_routes
from online_rl.registry import IllegalTransition, Registry, UnknownVersion
from online_rl.retention import Undeliverable
from online_rl.service.rights import NoSigningKey, UserRights
from serving.auth import ApiKeyMiddleware, hash_keys

STATIC = Path(__file__).parent / "static"
# Everything the page needs comes from this service, and the browser is told to enforce it.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


class PageFiles(StaticFiles):
    """The page's files, revalidated at every load so that an upgraded service never runs with an old script."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(PAGE_HEADERS)
        return response


def scope_for(_method: str, path: str) -> str | None:
    """The scope that `path` needs. Liveness, readiness and the page itself need none; the page's data does."""
    if path in ("/", "/health", "/ready") or path == "/dashboard" or path.startswith("/dashboard/"):
        return None
    if path in ("/tokenize", "/detokenize", "/version"):
        return "inference"
    return "admin"


def create_app(
    engine: Engine,
    settings: Settings,
    *,
    http: httpx.AsyncClient,
    started_at: float | None = None,
) -> FastAPI:
    """The application over `engine`; `http` reaches the policy application and is closed with this one."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await http.aclose()

    app = FastAPI(
        title="Online RL", docs_url=None, redoc_url=None, openapi_url="/admin/openapi.json", lifespan=lifespan
    )
    registry = Registry(engine)
    limits = Limits.of(settings)
    feed = StatusFeed(engine, limits, started_at=time.time() if started_at is None else started_at)
    app.include_router(probe_routes(engine, limits, feed, PolicyClient(http)))
    rights = UserRights(engine, settings)
    app.include_router(admin_routes(engine, registry, RegistryDeliveries(registry), feed, rights))
    app.mount("/dashboard", PageFiles(directory=STATIC, html=True), name="dashboard")

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/dashboard/")

    add_error_handlers(app)
    app.add_middleware(ApiKeyMiddleware, keys=hash_keys(settings.api_keys), scope_for=scope_for)
    return app


def add_error_handlers(app: FastAPI) -> None:
    """Every problem has the OpenAI shape and names what to do."""

    @app.exception_handler(UnknownVersion)
    async def unknown(_request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(str(error), "unknown_version", param="version"), 404)

    @app.exception_handler(NothingKnown)
    async def nothing(_request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(str(error), "not_found"), 404)

    @app.exception_handler(NoSigningKey)
    async def keyless(_request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(str(error), "no_signing_key", "server_error"), 503)

    @app.exception_handler(IllegalTransition)
    async def illegal(_request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(str(error), "illegal_transition", param="version"), 409)

    @app.exception_handler(Undeliverable)
    async def undeliverable(_request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(error_body(str(error), "undeliverable", param="version"), 409)

    @app.exception_handler(HTTPException)
    async def plain(_request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:  # FastAPI's word for a body that is not even text; what is no JSON is 422 already
            return JSONResponse(error_body("body: is not JSON in UTF-8", "invalid_value", param="body"), 422)
        return JSONResponse(error_body(str(error.detail), "refused"), error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first: dict[str, Any] = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path")) or "body"
        return JSONResponse(error_body(f"{field}: {first['msg']}", "invalid_value", param=field), 422)

    async def database_down(_request: Request, _error: Exception) -> JSONResponse:
        message = "the database does not answer; the policy goes on answering. Check database.url and its server."
        return JSONResponse(error_body(message, "database_unavailable", "server_error"), 503)

    for kind in UNAVAILABLE:
        app.add_exception_handler(kind, database_down)
