"""The operations application on Ray Serve, at ``/`` beside the policy and the feedback applications."""

import httpx
from fastapi import FastAPI
from ray import serve

from feedback.database import open_database
from online_rl.config import Settings
from online_rl.dashboard.http_app import create_app
from online_rl.dashboard.policy_client import base_url


def ops_application(settings: Settings) -> serve.Application:
    """The Ray Serve application for ``/``. It opens the database in its replica and needs hardly any processor."""
    return OpsDeployment.bind(settings)


@serve.deployment(name="ops", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=200)
@serve.ingress()
class OpsDeployment:
    """One replica of the operations application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __serve_build_asgi_app__(self) -> FastAPI:
        settings = self._settings
        engine = open_database(settings.database_url)
        http = httpx.AsyncClient(base_url=base_url(settings.serving.host, settings.serving.port), timeout=60.0)
        return create_app(engine, settings, http=http)
