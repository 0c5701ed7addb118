"""The feedback routes and the look-up answer as their OpenAPI documents say, on a real database."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from schemathesis import Case

import online_rl.tables
from feedback import tables
from feedback.app import build_feedback_app, build_inferences_app
from feedback.assembler import Assembler
from feedback.database import open_database
from feedback.inbox import Submission, store_feedback
from feedback.schemas import ErrorAnswer, FeedbackIn
from feedback.settings import DatabaseSettings, FeedbackSettings
from online_rl.config import Settings
from serving.inference_ids import InferenceIds, load_or_create_secret
from tests.feedback.samples import as_record, make_generation
from tests.openapi import DOCUMENTED, REFUSED, open_schema, operations, require_documented, try_all, try_each

FEEDBACK, INFERENCES = "/v1/feedback/openapi.json", "/v1/inferences/openapi.json"
BEARER = {"authorization": "Bearer key"}


class Service:
    """The settings of both applications, over a database with an answer that was rated."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder / 'test.db'}"
        self.engine = open_database(url)
        tables.metadata.create_all(self.engine)
        online_rl.tables.metadata.create_all(self.engine)
        # So few that the cap is met.
        feedback = FeedbackSettings(user_per_minute=40)
        self.settings = Settings(data_dir=folder, database=DatabaseSettings(url=url), feedback=feedback)
        self.inference_id = InferenceIds(load_or_create_secret(self.settings.signing_key_file)).issue()
        answer = make_generation(self.inference_id, at=time.time(), user_id="ann", tags={"plan": "a"})
        Assembler(self.engine, feedback).store([as_record(answer)])
        said = Submission(FeedbackIn(inference_id=self.inference_id, value=1), 1.0, "anonymous")
        with self.engine.begin() as connection:
            self.feedback_id = store_feedback(connection, [said], time.time())[0].feedback_id

    def with_key(self, *scopes: str) -> Settings:
        return self.settings.model_copy(update={"api_keys": {"key": list(scopes)}})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.engine.dispose()


def test_feedback_is_answered_as_documented(service: Service) -> None:
    def check(case: Case) -> int:
        # The items of a batch are judged each for itself, in an answer that is 200.
        return require_documented(case, DOCUMENTED if case.path.endswith("/batch") else REFUSED)

    answered = try_all(open_schema(build_feedback_app(service.settings), FEEDBACK), check, examples=8)
    assert len(answered) == 3


def test_feedback_on_an_answer_of_ours_is_answered_as_documented(service: Service) -> None:
    """Chance finds no signed id."""

    def aim(item: object) -> object:
        if not isinstance(item, dict):
            return item
        value = 1 if isinstance(item.get("value"), bool) else 0.5
        fitting = {"inference_id": service.inference_id, "episode_id": None, "metric_name": "reward", "value": value}
        return item | fitting | {"user": "ann", "comment": None, "tags": {}, "idempotency_key": "again"}

    def check(case: Case) -> int:
        if case.path.endswith("{feedback_id}"):
            case.path_parameters = {"feedback_id": service.feedback_id}
        elif case.path.endswith("/batch") and isinstance(case.body, dict):
            items = case.body.get("items")
            case.body = case.body | {"items": [aim(item) for item in items] if isinstance(items, list) else items}
        else:
            case.body = aim(case.body)
        return require_documented(case)

    answered = try_all(open_schema(build_feedback_app(service.settings), FEEDBACK), check, examples=8)
    assert {200, 202, 409, 422, 429} <= answered["POST /v1/feedback"].keys()
    assert set(answered["DELETE /v1/feedback/{feedback_id}"]) == {200}


def test_a_look_up_is_answered_as_documented(service: Service) -> None:
    schema = open_schema(build_inferences_app(service.settings), INFERENCES)

    def check_ours(case: Case) -> int:
        case.path_parameters = {"inference_id": service.inference_id}
        return require_documented(case)

    (answered,) = try_all(schema, require_documented, examples=10).values()
    assert set(answered) == {404}
    assert set(try_each(schema, check_ours).values()) == {200}


@pytest.mark.parametrize(("scopes", "headers", "status"), [(["admin"], {}, 401), (["admin"], BEARER, 403)])
def test_what_needs_a_key_is_refused_as_documented(
    service: Service, scopes: list[str], headers: dict[str, str], status: int
) -> None:
    keyed = service.with_key(*scopes)
    for build, path in ((build_feedback_app, FEEDBACK), (build_inferences_app, INFERENCES)):
        schema = open_schema(build(service.settings), path)
        schema.app = build(keyed)
        answered = try_each(schema, lambda case: require_documented(case, headers=headers))
        assert set(answered.values()) == {status}


def test_what_is_no_route_is_refused_in_the_same_shape(service: Service) -> None:
    app = build_feedback_app(service.settings)
    client = TestClient(app, base_url="http://127.0.0.1")
    for operation in operations(open_schema(app, FEEDBACK)):
        answered = client.patch(operation.path)
        assert answered.status_code == 405
        assert answered.headers["allow"]
        ErrorAnswer.model_validate_json(answered.content)
    assert client.get("/v1/feedback/a/b").status_code == 404
    ErrorAnswer.model_validate_json(client.get("/v1/feedback/a/b").content)
