"""``/ready`` generates a token as a client's request would, and gives back what it held however that ends."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from serving import service
from serving.inference_ids import InferenceIds
from serving.service import PolicyService
from serving.settings import ServingSettings, SwapSettings
from serving.vllm_routes import HANDLERS
from tests.serving.fakes import FakeEngine, fake_artifact


class ReadyEngine(FakeEngine):
    """The fake engine with what its routes and the readiness check need."""

    vocabulary_start = 1
    dead = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[int], str | None]] = []
        self.hangs = False

    takes_adapters = False

    async def build_app(self) -> FastAPI:
        app = FastAPI()
        for attribute, _ in HANDLERS:
            setattr(app.state, attribute, None)
        app.state.openai_serving_models = SimpleNamespace(show_available_models=None)
        return app

    def routable(self) -> set[str]:
        return set(self.adapters)

    async def generate_token(self, tokens: list[int], adapter: str | None = None) -> int:
        self.asked.append((tokens, adapter))
        if self.hangs:
            await asyncio.Event().wait()
        return 100


def make_service(engine: ReadyEngine, *, lora: bool) -> PolicyService:
    parts: Any = SimpleNamespace(
        serving=ServingSettings(),
        swap=SwapSettings(keep_versions=1),
        lora=lora,
        base_folder=Path("base"),
        ids=InferenceIds(b"k" * 32),
        keys={},
        feedback_token_seconds=60,
        versions=None,
        assignments=None,
        database_errors=(),
    )
    return PolicyService(engine, parts)  # pyright: ignore[reportArgumentType]


async def ask(subject: PolicyService) -> httpx.Response:
    transport = httpx.ASGITransport(app=await subject.build_asgi())  # pyright: ignore[reportArgumentType]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        return await http.get("/v1/ready")


@pytest.fixture
def engine() -> ReadyEngine:
    return ReadyEngine()


async def test_without_a_version_it_is_not_ready(engine: ReadyEngine):
    response = await ask(make_service(engine, lora=True))
    assert (response.status_code, response.json()) == (
        503,
        {"ready": False, "reason": "RuntimeError: no version is loaded"},
    )
    assert engine.asked == []


async def test_merged_weights_are_asked_under_the_model_s_own_name(engine: ReadyEngine):
    subject = make_service(engine, lora=False)
    await subject._swap.swap(fake_artifact(3, 0))
    response = await ask(subject)
    assert (response.status_code, response.json()) == (200, {"ready": True, "version": 3})
    assert response.headers["x-policy-version"] == "3"
    assert engine.asked == [([1], None)]


async def is_given_back(subject: PolicyService, engine: ReadyEngine) -> bool:
    """Whether the adapter of version 1 can be unloaded for that of version 2."""
    await subject._swap.swap(fake_artifact(2, 1))
    return list(engine.adapters) == ["policy@v2"]


async def test_an_adapter_is_asked_by_its_name_and_given_back(engine: ReadyEngine):
    subject = make_service(engine, lora=True)
    await subject._swap.swap(fake_artifact(1, 0))
    response = await ask(subject)
    assert (response.status_code, response.json()) == (200, {"ready": True, "version": 1})
    assert engine.asked == [([1], "policy@v1")]
    assert await is_given_back(subject, engine)


async def test_an_adapter_that_the_routes_do_not_know_is_not_ready_and_given_back(
    engine: ReadyEngine, monkeypatch: pytest.MonkeyPatch
):
    subject = make_service(engine, lora=True)
    await subject._swap.swap(fake_artifact(1, 0))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "routable", lambda: set())
        response = await ask(subject)
    assert response.status_code == 503
    assert response.json()["reason"] == "RuntimeError: the engine's routes know no policy@v1"
    assert engine.asked == []
    assert await is_given_back(subject, engine)


async def test_trap_19_an_engine_that_answers_nothing_is_not_ready_in_time_and_gives_back(
    engine: ReadyEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "READY_SECONDS", 0.05)
    engine.hangs = True
    subject = make_service(engine, lora=True)
    await subject._swap.swap(fake_artifact(1, 0))
    response = await ask(subject)
    assert response.status_code == 503
    assert "TimeoutError" in response.json()["reason"]
    assert await is_given_back(subject, engine)


async def test_a_dead_engine_is_not_asked(engine: ReadyEngine):
    engine.dead = True
    subject = make_service(engine, lora=False)
    await subject._swap.swap(fake_artifact(1, 0))
    response = await ask(subject)
    assert (response.status_code, response.json()["reason"]) == (503, "RuntimeError: the engine is dead")
    assert engine.asked == []
