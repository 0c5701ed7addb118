"""What is hung into the routes of vLLM's application, on handlers shaped like its own."""

from types import SimpleNamespace
from typing import Any

import pytest

from serving.refusal import Refusal, unknown_model
from serving.vllm_routes import HANDLERS, LORA_LIMIT, list_versions, observe_requests

NAMES = [attribute for attribute, _ in HANDLERS]


class Handler:
    def __init__(self, method: str) -> None:
        setattr(self, method, self.answer)

    async def answer(self, request: Any, _raw_request: Any = None) -> Any:
        return request

    def create_error_response(self, message: str, **fields: Any) -> dict[str, Any]:
        return {"message": message, **fields}


def make_app(*without: str) -> Any:
    handlers = {attribute: None if attribute in without else Handler(method) for attribute, method in HANDLERS}
    return SimpleNamespace(state=SimpleNamespace(**handlers))


async def call(app: Any, attribute: str, request: Any) -> Any:
    raw = SimpleNamespace(headers={"x-request-id": "inference-1"})
    return await getattr(getattr(app.state, attribute), dict(HANDLERS)[attribute])(request, raw)


async def accept(request: Any) -> None:
    request.model = "policy@v3"


@pytest.mark.parametrize("name", NAMES)
async def test_every_generating_route_is_seen_and_its_model_can_be_changed(name: str):
    app = make_app()
    observe_requests(app, accept, takes_adapters=False)
    answered = await call(app, name, SimpleNamespace(model="policy", prompt_logprobs=1))
    assert answered.model == "policy@v3"
    assert getattr(answered, "request_id", None) == ("resp_inference-1" if name == "openai_serving_responses" else None)


@pytest.mark.parametrize("name", NAMES)
async def test_a_refusal_is_answered_in_the_engine_s_shape_and_the_engine_is_not_asked(name: str):
    async def refuse(_request: Any) -> Refusal:
        return unknown_model("no such model")

    app = make_app()
    observe_requests(app, refuse, takes_adapters=False)
    refused = await call(app, name, SimpleNamespace(model="other"))
    assert refused == {"message": "no such model", "err_type": "NotFoundError", "status_code": 404, "param": "model"}


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 0}, {"echo": True, "logprobs": 1}])
async def test_what_would_kill_an_engine_with_adapters_is_refused(fields: dict[str, Any]):
    app = make_app()
    observe_requests(app, accept, takes_adapters=True)
    refused = await call(app, "openai_serving_completion", SimpleNamespace(**fields))
    assert refused == {"message": LORA_LIMIT, "param": "prompt_logprobs"}
    passed = await call(app, "openai_serving_completion", SimpleNamespace(echo=True, logprobs=None))
    assert passed.model == "policy@v3"


def test_a_route_that_the_model_does_not_support_is_left_out():
    observe_requests(make_app("openai_serving_responses"), accept, takes_adapters=False)


async def test_each_version_is_listed_behind_the_alias():
    class Card(SimpleNamespace):
        def model_copy(self, update: dict[str, Any]) -> "Card":
            return Card(**{**vars(self), **update})

    async def show() -> Any:
        return SimpleNamespace(data=[Card(id="policy", parent=None, root="base"), Card(id="policy@v2-of-vllm")])

    app = SimpleNamespace(state=SimpleNamespace(openai_serving_models=SimpleNamespace(show_available_models=show)))
    list_versions(app, lambda: [("policy@v2", "policy@v1", "v2/merged")])
    listing = await app.state.openai_serving_models.show_available_models()
    assert [vars(card) for card in listing.data] == [
        {"id": "policy", "parent": None, "root": "base"},
        {"id": "policy@v2", "parent": "policy@v1", "root": "v2/merged"},
    ]
