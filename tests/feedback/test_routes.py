"""The routes, as a client sees them, on both databases."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from feedback.app import build_feedback_app, build_inferences_app
from feedback.assembler import Assembler
from feedback.settings import DatabaseSettings, FeedbackSettings, MetricSettings
from feedback.tables import feedback, outbox
from online_rl.config import Settings
from serving.inference_ids import InferenceIds, load_or_create_secret
from tests.feedback.samples import as_record, make_generation
from tests.postgres import PostgresServer

METRICS = {
    "reward": MetricSettings(),
    "solved": MetricSettings(type="boolean", required=False),
    "seconds": MetricSettings(minimum=0, maximum=None, required=False),
}


class Service:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.ids = InferenceIds(load_or_create_secret(settings.data_dir / "signing.key"))
        self.assembler = Assembler(engine, settings.feedback)
        transport = httpx.ASGITransport(build_feedback_app(settings), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        transport = httpx.ASGITransport(build_inferences_app(settings), raise_app_exceptions=False)
        self.lookup = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def post(self, body: Any = None, **more: Any) -> httpx.Response:
        return await self.http.post("/v1/feedback", json=body, **more)

    def answer(self, api_key_id: str = "anonymous", **more: Any) -> str:
        """An inference that is stored; its id."""
        inference_id = self.ids.issue()
        generation = make_generation(inference_id, at=time.time(), api_key_id=api_key_id, **more)
        assert self.assembler.store([as_record(generation)]) == 1
        return inference_id

    def count(self, table: sa.Table = feedback) -> int:
        with self.engine.connect() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()

    async def close(self) -> None:
        await self.http.aclose()
        await self.lookup.aclose()


Make = Callable[..., Service]


@pytest.fixture
async def make(engine: Engine, database_url: str, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Service] = []

    def build(**settings: Any) -> Service:
        made.append(
            Service(
                engine,
                Settings(
                    data_dir=tmp_path,
                    database=DatabaseSettings(url=database_url),
                    **({"feedback": FeedbackSettings(metrics=METRICS)} | settings),
                ),
            )
        )
        return made[-1]

    yield build
    for service in made:
        await service.close()


@pytest.fixture
def service(make: Make) -> Service:
    return make()


async def test_accepted_is_durable_with_its_outbox_row(service: Service) -> None:
    answered = await service.post({"inference_id": service.answer(), "value": 0.5, "comment": "so so"})
    assert answered.status_code == 202
    assert set(answered.json()) == {"feedback_id"}
    assert service.count() == 1
    assert service.count(outbox) == 1


async def test_the_id_is_taken_as_the_response_gave_it(service: Service) -> None:
    for prefix in ("", "chatcmpl-", "cmpl-", "resp_"):
        assert (await service.post({"inference_id": prefix + service.ids.issue(), "value": 1})).status_code == 202


async def test_trap_12_an_id_that_was_issued_here_is_accepted_before_its_answer_is_stored(service: Service) -> None:
    assert (await service.post({"inference_id": service.ids.issue(), "value": 1})).status_code == 202


async def test_an_id_that_is_not_ours_is_404(service: Service) -> None:
    for foreign in ("chatcmpl-123", "a" * 32, "x", "x" * 256):
        answered = await service.post({"inference_id": foreign, "value": 1})
        assert answered.status_code == 404
        assert answered.json()["error"]["param"] == "inference_id"
    assert service.count() == 0


async def test_the_same_again_is_200_with_the_first_id_and_stored_once(service: Service) -> None:
    body = {"inference_id": service.answer(), "value": 1, "idempotency_key": "k"}
    first, second = await service.post(body), await service.post(body)
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json() == second.json()
    # The id with the route's prefix is the same id.
    third = await service.post(body | {"inference_id": "chatcmpl-" + body["inference_id"]})
    assert third.status_code == 200
    assert (service.count(), service.count(outbox)) == (1, 1)


async def test_the_same_key_with_other_content_is_409_and_changes_nothing(service: Service) -> None:
    body = {"inference_id": service.answer(), "value": 1, "idempotency_key": "k"}
    await service.post(body)
    answered = await service.post(body | {"value": 0.5})
    assert answered.status_code == 409
    assert answered.json()["error"]["param"] == "idempotency_key"
    assert service.count() == 1


async def test_without_a_key_each_post_is_its_own(service: Service) -> None:
    body = {"inference_id": service.answer(), "value": 1}
    assert (await service.post(body)).json() != (await service.post(body)).json()
    assert service.count() == 2


async def test_many_at_once_with_the_same_keys_are_stored_once_each(service: Service) -> None:
    inference_id = service.answer()
    bodies = [{"inference_id": inference_id, "value": 1, "idempotency_key": f"k{n % 10}"} for n in range(100)]
    answered = await asyncio.gather(*(service.post(body) for body in bodies))
    assert sorted(one.status_code for one in answered) == [200] * 90 + [202] * 10
    assert service.count() == service.count(outbox) == 10


REFUSED = [
    ({"value": 2}, "value"),
    ({"value": -1.01}, "value"),
    ({"value": True}, "value"),
    ({"value": "good"}, "value"),
    ({"value": "1"}, "value"),
    ({"value": None}, "value"),
    ({"value": [1]}, "value"),
    ({}, "value"),
    ({"metric_name": "solved", "value": 0.5}, "value"),
    ({"metric_name": "solved", "value": "true"}, "value"),
    ({"metric_name": "seconds", "value": -1}, "value"),
    ({"metric_name": "unheard-of", "value": 1}, "metric_name"),
    ({"metric_name": 3, "value": 1}, "metric_name"),
    ({"value": 1, "choice_index": -1}, "choice_index"),
    ({"value": 1, "choice_index": "first"}, "choice_index"),
    ({"value": 1, "choice_index": True}, "choice_index"),
    ({"value": 1, "choice_index": "0"}, "choice_index"),
    ({"value": 1, "dryrun": "no"}, "dryrun"),
    ({"value": 1, "episode_id": "e"}, "inference_id"),
    ({"value": 1, "inference_id": None}, "inference_id"),
    ({"value": 1, "inference_id": None, "episode_id": "e", "choice_index": 1}, "choice_index"),
    ({"value": 1, "inference_id": 7}, "inference_id"),
    ({"value": 1, "tags": {"a": 1}}, "tags.a"),
    ({"value": 1, "tags": {"a": "\0"}}, "tags"),
    ({"value": 1, "tags": {str(n): "" for n in range(65)}}, "tags"),
    ({"value": 1, "user": "\0"}, "user"),
    ({"value": 1, "idempotency_key": ""}, "idempotency_key"),
    ({"value": 1, "idempotency_key": "k" * 257}, "idempotency_key"),
    ({"value": 1, "comment": "c" * 16_385}, "comment"),
    ({"value": 1, "reward": 1}, "reward"),
]


async def test_malformed_feedback_is_422_and_names_the_field(service: Service) -> None:
    for body, field in REFUSED:
        answered = await service.post({"inference_id": service.ids.issue()} | body)
        assert (body, answered.status_code) == (body, 422)
        assert (body, answered.json()["error"]["param"]) == (body, field)
    assert service.count() == 0


async def test_a_body_that_is_no_feedback_is_422(service: Service) -> None:
    for raw in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000):
        answered = await service.http.post("/v1/feedback", content=raw)
        assert (raw[:9], answered.status_code) == (raw[:9], 422)


async def test_trap_20_a_value_that_is_no_number_is_refused(service: Service) -> None:
    cases = [
        (metric, number) for metric in ("reward", "seconds") for number in ("NaN", "Infinity", "-Infinity", "1e999")
    ]
    for metric, number in cases:
        raw = f'{{"inference_id": "{service.ids.issue()}", "metric_name": "{metric}", "value": {number}}}'
        answered = await service.http.post("/v1/feedback", content=raw)
        assert answered.status_code == 422
        assert answered.json()["error"]["param"] == "value"


async def test_a_boolean_metric(service: Service) -> None:
    for value in (True, False, 1, 0):
        body = {"inference_id": service.ids.issue(), "metric_name": "solved", "value": value}
        assert (await service.post(body)).status_code == 202
    with service.engine.connect() as connection:
        assert connection.execute(sa.select(feedback.c.value).order_by(feedback.c.seq)).scalars().all() == [1, 0, 1, 0]


async def test_a_user_who_sends_too_much_is_429_with_retry_after_and_nobody_else(make: Make) -> None:
    service = make(feedback=FeedbackSettings(user_per_minute=2))
    body = {"inference_id": service.ids.issue(), "value": 1, "user": "ann"}
    for status in (202, 202, 429, 429):
        answered = await service.post(body)
        assert answered.status_code == status
    assert answered.headers["retry-after"] == "30"
    assert answered.json()["error"] | {"message": ""} == {
        "message": "", "type": "rate_limit_error", "param": None, "code": "rate_limited",
    }  # fmt: skip
    assert "feedback.user_per_minute" in answered.json()["error"]["message"]
    many = await service.http.post("/v1/feedback/batch", json={"items": [body, body | {"user": "bob"}]})
    assert [one["status"] for one in many.json()["results"]] == [429, 202]
    assert (await service.post(body | {"dryrun": True})).status_code == 202
    for _ in range(3):
        assert (await service.post(body | {"user": None})).status_code == 202
    assert service.count() == 6


async def test_a_key_or_a_token_that_sends_too_much_is_429(make: Make) -> None:
    service = make(api_keys=KEYS, feedback=FeedbackSettings(user_per_minute=1, key_per_minute=2))
    inference_id = service.answer(api_key_id=key_id("ka"))
    body = {"inference_id": inference_id, "value": 1}
    assert [(await service.post(body, headers=bearer("ka"))).status_code for _ in range(3)] == [202, 202, 429]
    other = {"inference_id": service.ids.issue(), "value": 1}
    assert (await service.post(other, headers=bearer("kb"))).status_code == 202
    token = {"x-feedback-token": service.ids.feedback_token(inference_id, time.time() + 60)}
    assert [(await service.post(body, headers=token)).status_code for _ in range(2)] == [202, 429]


async def test_a_body_that_is_too_large_is_413(service: Service) -> None:
    answered = await service.http.post("/v1/feedback", content=b" " * (256 * 1024 + 1))
    assert answered.status_code == 413


async def test_a_dry_run_checks_and_stores_nothing(service: Service) -> None:
    body = {"inference_id": service.ids.issue(), "value": 1, "dryrun": True}
    assert (await service.post(body)).status_code == 202
    assert (await service.post(body | {"value": 3})).status_code == 422
    assert service.count() == 0


async def test_a_batch_takes_each_item_for_itself(service: Service) -> None:
    good = {"inference_id": service.ids.issue(), "value": 1}
    items = [good, good | {"value": 9}, {"inference_id": "theirs", "value": 1}, 7, good | {"idempotency_key": "k"}]
    answered = await service.http.post("/v1/feedback/batch", json={"items": items})
    assert answered.status_code == 200
    results = answered.json()["results"]
    assert [one["status"] for one in results] == [202, 422, 404, 422, 202]
    assert results[1]["error"]["param"] == "value"
    assert service.count() == 2


async def test_a_batch_that_is_none_is_422(service: Service) -> None:
    for raw in (b"[]", b"{}", b'{"items": 3}', b"{", b'{"items": [' + b"1," * 1000 + b"1]}"):
        answered = await service.http.post("/v1/feedback/batch", content=raw)
        assert answered.status_code == 422
        assert answered.json()["error"]["param"] == "items"


async def test_retracting(service: Service) -> None:
    inference_id = service.ids.issue()
    feedback_id = (await service.post({"inference_id": inference_id, "value": 1})).json()["feedback_id"]
    for _ in range(2):
        answered = await service.http.delete(f"/v1/feedback/{feedback_id}")
        assert answered.status_code == 200
        assert answered.json() == {"feedback_id": feedback_id, "effect": "removed"}
    assert service.count(outbox) == 2
    for unknown in ("fb_none", "fb_%00", "%00", "%ff", "fb_%ED%A0%80"):
        assert (await service.http.delete(f"/v1/feedback/{unknown}")).status_code == 404, unknown
        assert (await service.lookup.get(f"/v1/inferences/{unknown}")).status_code == 404, unknown
    service.assembler.join_new()
    generation = make_generation(inference_id, at=time.time())
    service.assembler.store([as_record(generation)])
    record = (await service.lookup.get(f"/v1/inferences/{inference_id}")).json()
    assert record["generations"][0]["state"] == "open"
    assert record["feedback"][0]["retracted_at"] is not None


async def test_what_was_asked_answered_and_learned(service: Service) -> None:
    inference_id = service.answer(text="hello", version=4, user_id="u")
    posted = await service.post({"inference_id": inference_id, "value": 0.5, "user": "u", "tags": {"a": "b"}})
    service.assembler.join_new()
    answered = await service.lookup.get(f"/v1/inferences/chatcmpl-{inference_id}")
    assert answered.status_code == 200
    record = answered.json()
    assert record["inference_id"] == inference_id
    assert record["versions"] == [4]
    (generation,) = record["generations"]
    assert generation["prompt_token_ids"] == [1, 2, 3]
    assert generation["token_ids"] == [10, 11]
    assert generation["behavior_logprobs"] == [-0.1, -0.2]
    assert generation["spans"] == [{"start": 0, "end": 2, "version": 4}]
    assert (generation["text"], generation["user_id"], generation["state"]) == ("hello", "u", "released")
    (rated,) = record["feedback"]
    assert rated["feedback_id"] == posted.json()["feedback_id"]
    assert (rated["value"], rated["status"], rated["user"], rated["tags"]) == (0.5, "used", "u", {"a": "b"})
    (trajectory,) = record["trajectories"]
    assert trajectory["trajectory_id"] == generation["trajectory_id"]
    assert trajectory["reward"] == 0.5


async def test_looking_up_what_is_not_there(service: Service) -> None:
    assert (await service.lookup.get("/v1/inferences/chatcmpl-1")).json()["error"]["code"] == "inference_not_found"
    answered = await service.lookup.get(f"/v1/inferences/{service.ids.issue()}")
    assert (answered.status_code, answered.json()["error"]["code"]) == (404, "inference_not_stored")


KEYS = {"ka": ["inference", "feedback"], "kb": ["inference", "feedback"], "kc": ["inference"]}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def key_id(key: str) -> str:
    from serving.auth import hash_keys

    return next(iter(hash_keys({key: []})))[:16]


async def test_no_route_works_without_its_scope(make: Make) -> None:
    service = make(api_keys=KEYS)
    body = {"inference_id": service.ids.issue(), "value": 1}
    for headers, status in (({}, 401), (bearer("nope"), 401), (bearer("kc"), 403), (bearer("ka"), 202)):
        assert (await service.post(body, headers=headers)).status_code == status
        batch = await service.http.post("/v1/feedback/batch", json={"items": []}, headers=headers)
        assert batch.status_code == (200 if status == 202 else status)
        gone = await service.http.delete("/v1/feedback/fb_1", headers=headers)
        assert gone.status_code == (404 if status == 202 else status)
    looked = await service.lookup.get(f"/v1/inferences/{body['inference_id']}")
    assert looked.status_code == 401


async def test_keys_never_see_each_others_data(make: Make) -> None:
    service = make(api_keys=KEYS)
    inference_id = service.answer(api_key_id=key_id("ka"))
    body = {"inference_id": inference_id, "value": 1, "idempotency_key": "k"}
    theirs = await service.post(body, headers=bearer("kb"))
    assert theirs.status_code == 404
    mine = await service.post(body, headers=bearer("ka"))
    assert mine.status_code == 202
    # Nor does one key's idempotency key stand in another's way.
    other = await service.post(body | {"inference_id": service.ids.issue()}, headers=bearer("kb"))
    assert other.status_code == 202
    path = f"/v1/feedback/{mine.json()['feedback_id']}"
    assert (await service.http.delete(path, headers=bearer("kb"))).status_code == 404
    assert (await service.lookup.get(f"/v1/inferences/{inference_id}", headers=bearer("kb"))).status_code == 404
    assert (await service.lookup.get(f"/v1/inferences/{inference_id}", headers=bearer("ka"))).status_code == 200


async def test_a_feedback_token_allows_feedback_on_its_answer_and_nothing_else(make: Make) -> None:
    service = make(api_keys=KEYS)
    inference_id = service.answer(api_key_id=key_id("ka"))
    token = {"x-feedback-token": service.ids.feedback_token(inference_id, time.time() + 60)}
    posted = await service.post({"inference_id": inference_id, "value": 1}, headers=token)
    assert posted.status_code == 202
    service.assembler.join_new()
    record = await service.lookup.get(f"/v1/inferences/{inference_id}", headers=bearer("ka"))
    assert record.json()["feedback"][0]["status"] == "used"
    assert (await service.post({"inference_id": service.ids.issue(), "value": 1}, headers=token)).status_code == 403
    assert (await service.post({"episode_id": inference_id, "value": 1}, headers=token)).status_code == 403
    assert (await service.lookup.get(f"/v1/inferences/{inference_id}", headers=token)).status_code == 401
    expired = {"x-feedback-token": service.ids.feedback_token(inference_id, time.time() - 1)}
    forged = {"x-feedback-token": token["x-feedback-token"][:-2] + "aa"}
    for bad in (expired, forged, {"x-feedback-token": "x"}, {"x-feedback-token": ""}):
        answered = await service.post({"inference_id": inference_id, "value": 1}, headers=bad)
        assert answered.status_code == 401
        assert answered.json()["error"]["code"] == "invalid_feedback_token"


async def test_a_browser_of_another_origin_may_post(service: Service) -> None:
    asked = {
        "origin": "https://shop.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,x-feedback-token",
    }
    answered = await service.http.options("/v1/feedback", headers=asked)
    assert answered.status_code == 200
    assert answered.headers["access-control-allow-origin"] == "*"


async def test_the_routes_are_found_under_a_mounted_prefix_too(service: Service) -> None:
    """As Ray Serve calls them: the whole path, and the application's prefix as root path."""
    transport = httpx.ASGITransport(service.http._transport.app, root_path="/v1/feedback")  # type: ignore[attr-defined]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answered = await http.post("/v1/feedback", json={"inference_id": service.ids.issue(), "value": 1})
    assert answered.status_code == 202


async def test_a_database_that_refuses_is_503_with_retry_after(service: Service) -> None:
    with service.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE feedback RENAME TO elsewhere"))
    answered = await service.post({"inference_id": service.ids.issue(), "value": 1})
    if service.engine.dialect.name == "sqlite":  # PostgreSQL calls a missing table a mistake, not an outage
        assert answered.status_code == 503
        assert answered.headers["retry-after"]
        assert answered.json()["error"]["code"] == "database_unavailable"
    with service.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE elsewhere RENAME TO feedback"))
    assert (await service.post({"inference_id": service.ids.issue(), "value": 1})).status_code == 202


@pytest.mark.postgres
async def test_with_the_database_down_feedback_is_503_and_taken_again_when_it_is_back(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    from feedback import tables
    from feedback.database import open_database

    url = postgres.create_database("outage")
    engine = open_database(url)
    tables.metadata.create_all(engine)
    service = Service(engine, Settings(data_dir=tmp_path, database=DatabaseSettings(url=url)))
    inference_id = service.answer()
    body = {"inference_id": inference_id, "value": 1, "idempotency_key": "k"}
    assert (await service.post(body | {"idempotency_key": "before"})).status_code == 202
    postgres.stop()
    try:
        for _ in range(3):
            answered = await service.post(body)
            assert answered.status_code == 503
            assert answered.headers["retry-after"] == "1"
        looked = await service.lookup.get(f"/v1/inferences/{inference_id}")
        assert looked.status_code == 503
        many = await service.http.post("/v1/feedback/batch", json={"items": [body, body]})
        assert [one["status"] for one in many.json()["results"]] == [503, 503]
    finally:
        postgres.start()
    assert (await service.post(body)).status_code == 202
    assert service.count() == service.count(outbox) == 2
    await service.close()
    engine.dispose()


def test_errors_hold_no_content() -> None:
    """A client's words never come back in an error, where a log would keep them."""
    from feedback.validation import InvalidFeedback, parse_feedback

    with pytest.raises(InvalidFeedback) as caught:
        parse_feedback(json.dumps({"inference_id": "x", "value": {"secret": "word"}, "comment": 5}).encode())
    assert "secret" not in str(caught.value)
