"""The middleware: ids, held headers, and that nothing but the start is held."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from serving.context import InvalidBody, RequestContext, current_request, decode_header, parse_tags
from serving.headers import RequestMiddleware
from serving.inference_ids import InferenceIds
from serving.routes import INFERENCE_ROUTES, RouteShim, is_inference, scope_for

IDS = InferenceIds(b"k" * 32)


class Exchange:
    """One request through the middleware to `app`, with what came back."""

    def __init__(self, app: Any) -> None:
        self.sent: list[dict] = []
        self.statuses: list[int] = []
        self.abandoned: list[str] = []
        self.middleware = RequestMiddleware(
            app,
            ids=IDS,
            captured=is_inference,
            feedback_token_seconds=60,
            on_finished=self.statuses.append,
            abandon=self.abandoned.extend,
            clock=lambda: 1000.0,
        )

    async def run(self, path: str = "/v1/chat/completions", **headers: str) -> None:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "headers": raw, "state": {"api_key_id": "k1"}}

        async def send(message):
            self.sent.append(message)

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        await self.middleware(scope, receive, send)

    @property
    def headers(self) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in self.sent[0]["headers"]}


def sample(context: RequestContext, prefix: str) -> None:
    """What the capture notes at the engine's first output."""
    context.response_id = f"{prefix}{context.inference_id}"
    context.policy_version = 7
    context.engine_answered = True


async def answering(scope, receive, send, context: RequestContext | None = None) -> None:
    context = current_request.get()
    assert context is not None
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    sample(context, "chatcmpl-")
    for number in range(3):
        await send({"type": "http.response.body", "body": b"chunk %d" % number, "more_body": number < 2})


async def test_the_response_names_inference_episode_version_and_token():
    exchange = Exchange(answering)
    await exchange.run()
    inference_id = IDS.parse(exchange.headers["x-inference-id"])
    assert inference_id is not None
    assert exchange.headers["x-inference-id"] == f"chatcmpl-{inference_id}"
    assert exchange.headers["x-episode-id"] == inference_id
    assert exchange.headers["x-policy-version"] == "7"
    assert IDS.check_token(exchange.headers["x-feedback-token"], 1059.0) == inference_id
    assert [message.get("body") for message in exchange.sent] == [None, b"chunk 0", b"chunk 1", b"chunk 2"]
    assert exchange.statuses == [200]


async def test_each_chunk_leaves_at_once():
    arrived = asyncio.Event()

    async def slow(scope, receive, send):
        context = current_request.get()
        assert context is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        sample(context, "chatcmpl-")
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await arrived.wait()
        await send({"type": "http.response.body", "body": b"last"})

    exchange = Exchange(slow)
    running = asyncio.create_task(exchange.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [message.get("body") for message in exchange.sent] == [None, b"first"]
    arrived.set()
    await running


EVERY_HEADER = {"x-inference-id", "x-episode-id", "x-feedback-token", "x-policy-version"}


@pytest.mark.parametrize("path", sorted(INFERENCE_ROUTES))
@pytest.mark.parametrize("stream", [True, False])
async def test_every_generating_route_carries_every_header(path: str, stream: bool):
    """Whatever the route sends before its first token, as ``/v1/responses`` does."""

    async def app(scope, receive, send):
        context = current_request.get()
        assert context is not None
        if not stream:
            sample(context, "id-")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if stream:
            for early in (b"created", b"in progress"):
                await send({"type": "http.response.body", "body": early, "more_body": True})
            sample(context, "id-")
        await send({"type": "http.response.body", "body": b"token", "more_body": stream})
        if stream:
            await send({"type": "http.response.body", "body": b""})

    exchange = Exchange(app)
    await exchange.run(path)
    assert exchange.headers.keys() >= EVERY_HEADER
    assert exchange.headers["x-policy-version"] == "7"
    pieces = [message["body"] for message in exchange.sent[1:]]
    assert pieces == ([b"created", b"in progress", b"token", b""] if stream else [b"token"])


async def test_a_stream_that_never_asks_the_engine_ends_all_the_same():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"created", "more_body": True})
        await send({"type": "http.response.body", "body": b"failed"})

    exchange = Exchange(app)
    await exchange.run("/v1/responses")
    assert [message.get("body") for message in exchange.sent] == [None, b"created", b"failed"]
    assert "x-inference-id" not in exchange.headers


async def test_the_engine_sees_our_id_and_never_the_client_s():
    seen: dict[str, Any] = {}

    async def app(scope, receive, send):
        seen["ids"] = [value.decode() for key, value in scope["headers"] if key == b"x-request-id"]
        seen["context"] = current_request.get()
        await answering(scope, receive, send)

    exchange = Exchange(app)
    await exchange.run(x_request_id="mine", x_episode_id="e1", x_train="false", x_user_id="u1", x_tags="a=1, b=2")
    context = seen["context"]
    assert seen["ids"] == [context.inference_id]
    assert context.client_request_id == "mine"
    assert (context.episode_id, context.train, context.user_id) == ("e1", False, "u1")
    assert (context.tags, context.api_key_id) == ({"a": "1", "b": "2"}, "k1")
    assert current_request.get() is None


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"x_train": "maybe"}, "x-train"),
        ({"x_episode_id": ""}, "x-episode-id"),
        ({"x_group_id": "g" * 257}, "x-group-id"),
        ({"x_tags": "a"}, "x-tags"),
    ],
)
async def test_a_malformed_header_is_refused_by_name(headers: dict[str, str], name: str):
    exchange = Exchange(answering)
    await exchange.run(**headers)
    assert exchange.sent[0]["status"] == 422
    assert name.encode() in exchange.sent[1]["body"]


def test_an_episode_id_is_the_same_text_in_a_header_and_in_a_body():
    assert decode_header("café".encode()) == decode_header("café".encode("latin-1")) == "café"


@pytest.mark.parametrize("value", ["e" * 257, "a\nb", "\ud800", 7])
def test_an_id_in_the_body_that_cannot_be_kept_is_refused_by_name(value: object):
    context = RequestContext("i" * 32, 0.0)
    with pytest.raises(InvalidBody, match=r"metadata\.episode_id") as caught:
        context.take_body(SimpleNamespace(metadata={"episode_id": value}, model_fields_set=()))
    assert caught.value.param == "metadata.episode_id"


@pytest.mark.parametrize("text", ["a\0b", "half \ud800"])
@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("user", lambda text: {"user": text}),
        ("metadata.user_id", lambda text: {"metadata": {"user_id": text}}),
        ("request_id", lambda text: {"request_id": text, "model_fields_set": ("request_id",)}),
    ],
)
def test_a_text_that_no_database_keeps_is_refused(text: str, name: str, body: Any) -> None:
    context = RequestContext("i", 0.0)
    with pytest.raises(InvalidBody, match=name) as caught:
        context.take_body(SimpleNamespace(**body(text)))
    assert caught.value.param == name


async def test_a_refused_request_names_no_inference():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    exchange = Exchange(app)
    await exchange.run()
    assert "x-inference-id" not in exchange.headers
    assert exchange.statuses == [404]


async def test_a_refusal_of_the_engine_is_the_client_s_fault():
    """vLLM verifies sampling parameters inside of `generate`, and answers 400."""

    async def app(scope, receive, send):
        context = current_request.get()
        assert context is not None
        context.engine_failed = True
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    exchange = Exchange(app)
    await exchange.run()
    assert exchange.statuses == [400]


async def test_other_routes_pass_untouched():
    async def app(scope, receive, send):
        assert current_request.get() is None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    exchange = Exchange(app)
    await exchange.run("/tokenize")
    assert exchange.headers == {}
    assert exchange.statuses == []


async def test_what_a_request_held_is_given_back_however_it_ends():
    given_back: list[str] = []

    async def failing(scope, receive, send):
        context = current_request.get()
        assert context is not None
        context.holds.append(lambda: given_back.append("adapter"))
        context.leave_gate = lambda: given_back.append("gate")
        raise RuntimeError("engine")

    exchange = Exchange(failing)
    with pytest.raises(RuntimeError):
        await exchange.run()
    assert sorted(given_back) == ["adapter", "gate"]
    assert exchange.statuses == [500]


async def test_a_client_that_goes_away_is_no_failure():
    async def hanging(scope, receive, send):
        await asyncio.Event().wait()

    exchange = Exchange(hanging)
    running = asyncio.create_task(exchange.run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert exchange.statuses == [499]


async def test_a_call_of_the_engine_that_outlives_its_request_is_abandoned_and_keeps_what_it_holds():
    """vLLM's routes run the handler in a task of its own, which a cancelled route leaves running."""
    given_back: list[str] = []
    seen: list[RequestContext] = []
    ended = asyncio.Event()

    async def handler(context: RequestContext) -> None:
        context.begin_call("chatcmpl-1")
        await ended.wait()
        context.end_call("chatcmpl-1")

    async def app(scope, receive, send):
        context = current_request.get()
        assert context is not None
        context.holds.append(lambda: given_back.append("adapter"))
        context.leave_gate = lambda: given_back.append("gate")
        seen.append(context)
        task = asyncio.create_task(handler(context))
        await asyncio.wait([task])

    exchange = Exchange(app)
    running = asyncio.create_task(exchange.run())
    while not (seen and seen[0].generating):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert exchange.abandoned == ["chatcmpl-1"]
    assert given_back == []
    ended.set()
    while len(given_back) < 2:
        await asyncio.sleep(0)
    assert given_back == ["gate", "adapter"]


async def test_a_stream_that_the_engine_breaks_off_counts_as_failed():
    async def app(scope, receive, send):
        await answering(scope, receive, send)
        context = current_request.get()
        assert context is not None
        context.engine_failed = True

    exchange = Exchange(app)
    await exchange.run()
    assert exchange.statuses == [500]


async def test_a_body_can_name_user_and_episode_and_headers_win():
    class Body:
        user = "body-user"
        metadata = None
        model_extra = {"metadata": {"episode_id": "body-episode", "user_id": "meta-user"}}
        model_fields_set = {"request_id"}
        request_id = "body-request"

    context = RequestContext(inference_id="i", created_at=0.0, episode_id="header-episode")
    context.take_body(Body())
    assert (context.episode_id, context.user_id) == ("header-episode", "meta-user")
    assert context.client_request_id == "body-request"


def test_tags_are_bounded():
    with pytest.raises(ValueError, match="at most 16"):
        parse_tags(",".join(f"k{number}=v" for number in range(17)))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/chat/completions", 200),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/tokenize", 200),
        ("GET", "/v1/metrics", 200),
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/collective_rpc", 404),
        ("POST", "/v1/../sleep", 404),
    ],
)
async def test_only_listed_routes_exist(method: str, path: str, status: int):
    paths: list[str] = []
    sent: list[dict] = []

    async def app(scope, receive, send):
        paths.append(scope["path"])
        assert scope["root_path"] == ""
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "root_path": "/v1", "headers": []}
    await RouteShim(app)(scope, None, send)  # pyright: ignore[reportArgumentType]
    assert sent[0]["status"] == status
    assert bool(paths) == (status == 200)


def test_scopes():
    assert scope_for("POST", "/v1/chat/completions") == "inference"
    assert scope_for("GET", "/metrics") == "admin"
    assert scope_for("GET", "/ready") is None
    assert scope_for("POST", "/v1/anything") == "inference"
