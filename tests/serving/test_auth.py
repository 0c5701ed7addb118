import json

import pytest

from serving.auth import ApiKeyMiddleware, hash_keys

KEYS = hash_keys({"sk-a": ["inference"], "sk-b": ["inference", "admin"]})


def scope_for(method: str, path: str) -> str | None:
    if path.startswith("/admin"):
        return "admin"
    return None if path == "/health" else "inference"


async def call(keys, path="/v1/models", **headers: str):
    seen: list[str] = []
    sent: list[dict] = []

    async def app(scope, receive, send):
        seen.append(scope["state"]["api_key_id"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def send(message):
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw}
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
