import json

import pytest

from serving.auth import ApiKeyMiddleware, hash_keys

KEYS = hash_keys({"sk-a": ["inference"], "sk-b": ["inference", "admin"]})


def scope_for(method: str, path: str) -> str | None:
    if path.startswith("/admin"):
        return "admin"
    return None if path == "/health" else "inference"


async def call(keys, path="/v1/models", method="GET", **headers: str):
    seen: list[str] = []
    sent: list[dict] = []

    async def app(scope, receive, send):
        seen.append(scope["state"]["api_key_id"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def send(message):
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}
    await ApiKeyMiddleware(app, keys, scope_for)(scope, None, send)  # pyright: ignore[reportArgumentType]
    return sent[0]["status"], json.loads(sent[1]["body"]), seen


async def test_without_keys_everything_passes_as_anonymous():
    assert await call({}, "/admin/versions") == (200, {}, ["anonymous"])


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer sk-a"}, {"authorization": "bearer sk-a"}, {"x_api_key": "sk-a"}]
)
async def test_a_key_with_the_scope_passes_and_is_named_by_its_hash(headers):
    status, _, seen = await call(KEYS, **headers)
    assert status == 200
    assert seen == [next(iter(KEYS))[:16]]


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/v1/models", {}, 401, "missing_api_key"),
        ("/v1/models", {"authorization": "Basic sk-a"}, 401, "missing_api_key"),
        ("/v1/models", {"authorization": "Bearer wrong"}, 401, "invalid_api_key"),
        ("/admin/versions", {"authorization": "Bearer sk-a"}, 403, "insufficient_scope"),
    ],
)
async def test_what_lacks_the_scope_never_reaches_the_application(path, headers, status, code):
    answered, body, seen = await call(KEYS, path, **headers)
    assert (answered, body["error"]["code"], seen) == (status, code, [])
    assert "sk-a" not in json.dumps(body)


async def test_a_public_route_passes_without_a_key():
    assert (await call(KEYS, "/health"))[0] == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "localhost.", "[::1]:8000", "127.0.0.2"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_without_keys_clients_of_this_machine_are_served(method, host):
    assert (await call({}, "/admin/freeze", method, host=host))[0] == 200
    # A page of this service, and one that is developed on this machine.
    for origin in (f"http://{host}", "http://localhost:3000"):
        assert (await call({}, "/admin/freeze", method, host=host, origin=origin))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "10.0.0.5:8000",
        "",
        "[::1",
        "localhost@evil.example",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_without_keys_a_name_that_was_rebound_to_this_machine_is_refused(method, host):
    status, body, seen = await call({}, "/admin/freeze", method, host=host, origin=f"http://{host}")
    assert (status, body["error"]["code"], seen) == (403, "foreign_host", [])
    assert "ONLINE_RL_API_KEYS" in body["error"]["message"]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://[::1"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
async def test_without_keys_a_page_of_another_site_changes_nothing(method, origin):
    status, body, seen = await call({}, "/v1/feedback", method, host="127.0.0.1:8000", origin=origin)
    assert (status, body["error"]["code"], seen) == (403, "foreign_origin", [])
    assert (await call({}, "/v1/models", "GET", host="127.0.0.1:8000", origin=origin))[0] == 200


async def test_with_a_key_any_host_and_origin_pass():
    headers = {"authorization": "Bearer sk-a", "host": "api.example", "origin": "https://shop.example"}
    assert (await call(KEYS, "/v1/models", "POST", **headers))[0] == 200
