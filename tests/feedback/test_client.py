"""The Python client against the real routes, and against a service that fails."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import online_rl.client
from feedback import tables
from feedback.app import build_feedback_app, build_inferences_app
from feedback.assembler import Assembler
from feedback.database import open_database
from feedback.schemas import FeedbackIn
from online_rl.client import AsyncOnlineRL, OnlineRL, ServiceError
from online_rl.config import Settings
from serving.inference_ids import InferenceIds, load_or_create_secret
from tests.feedback.samples import as_record, make_generation


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_rl.client, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(online_rl.client, "LONGEST_PAUSE", 0.0)


class Flaky:
    """Answers with the given statuses, then 202; an exception in the list is raised."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content or b"{}"))
        answer = self._answers.pop(0) if self._answers else 202
        if isinstance(answer, Exception):
            raise answer
        if answer == 202:
            return httpx.Response(202, json={"feedback_id": "fb_1"})
        error = {"message": "no", "type": "t", "param": "value", "code": "c"}
        return httpx.Response(answer, json={"error": error}, headers={"retry-after": "1"})


def send(kind: str, flaky: Flaky, retries: int = 5, **item: Any) -> str:
    transport = httpx.MockTransport(flaky)
    body = {"inference_id": "x", "value": 1.0} | item
    if kind == "sync":
        with OnlineRL(transport=transport, retries=retries) as client:
            return client.feedback(**body).feedback_id

    async def post() -> str:
        async with AsyncOnlineRL(transport=transport, retries=retries) as client:
            return (await client.feedback(**body)).feedback_id

    return asyncio.run(post())


BOTH = pytest.mark.parametrize("kind", ["sync", "async"])


@BOTH
def test_what_fails_for_a_moment_is_tried_again_under_the_same_key(kind: str) -> None:
    flaky = Flaky(503, httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), 502)
    assert send(kind, flaky) == "fb_1"
    assert len(flaky.bodies) == 5
    assert len({body["idempotency_key"] for body in flaky.bodies}) == 1


@BOTH
def test_each_feedback_has_a_key_of_its_own_unless_the_caller_gives_one(kind: str) -> None:
    flaky = Flaky()
    send(kind, flaky)
    send(kind, flaky)
    send(kind, flaky, idempotency_key="mine")
    keys = [body["idempotency_key"] for body in flaky.bodies]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


@BOTH
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_a_refusal_is_not_tried_again(kind: str, status: int) -> None:
    flaky = Flaky(status)
    with pytest.raises(ServiceError) as caught:
        send(kind, flaky)
    assert (caught.value.status, caught.value.param, caught.value.code) == (status, "value", "c")
    assert len(flaky.bodies) == 1


@BOTH
def test_it_gives_up_in_the_end(kind: str) -> None:
    with pytest.raises(ServiceError) as caught:
        send(kind, Flaky(*[503] * 9), retries=2)
    assert caught.value.status == 503
    with pytest.raises(ServiceError, match="is the service running") as caught:
        send(kind, Flaky(*[httpx.ConnectError("refused")] * 9), retries=2)
    assert caught.value.status is None


def test_an_openai_base_url_works_too() -> None:
    seen: list[str] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url) + " " + request.headers["authorization"])
        return httpx.Response(202, json={"feedback_id": "fb_1"})

    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        OnlineRL(url, api_key="k", transport=httpx.MockTransport(note)).feedback(inference_id="x", value=1)
    assert set(seen) == {"http://h:1/v1/feedback Bearer k"}


async def test_against_the_real_routes(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    engine = open_database(settings.database_url)
    tables.metadata.create_all(engine)
    ids = InferenceIds(load_or_create_secret(tmp_path / "signing.key"))
    inference_id = ids.issue()
    generation = make_generation(inference_id, at=time.time())
    Assembler(engine, settings.feedback).store([as_record(generation)])
    apps: dict[bool, Callable[..., Any]] = {True: build_inferences_app(settings), False: build_feedback_app(settings)}

    async def route(scope: Any, receive: Any, send: Any) -> None:
        await apps[scope["path"].startswith("/v1/inferences")](scope, receive, send)

    async with AsyncOnlineRL("http://localhost/v1", transport=httpx.ASGITransport(route)) as client:
        first = await client.feedback(inference_id=f"chatcmpl-{inference_id}", value=1, idempotency_key="k")
        again = await client.feedback(inference_id=f"chatcmpl-{inference_id}", value=1, idempotency_key="k")
        assert first == again
        batch = await client.feedback_batch([FeedbackIn(inference_id=inference_id, value=value) for value in (0, 7)])
        assert [result.status for result in batch.results] == [202, 422]
        assert batch.results[1].error is not None
        assert batch.results[1].error.param == "value"
        record = await client.inference(inference_id)
        assert tuple(record.generations[0].token_ids) == generation.token_ids
        assert len(record.feedback) == 2
        assert (await client.retract(first.feedback_id)).effect == "removed"
        with pytest.raises(ServiceError) as caught:
            await client.retract("fb_none")
        assert caught.value.code == "feedback_not_found"
    engine.dispose()
