"""Readiness asks the policy for a token, shares the answer, and passes on nothing but the caller's key."""

import asyncio

import httpx
import pytest

from online_rl.dashboard.policy_client import PolicyClient, base_url


class Policy:
    """A policy application behind httpx's mock transport that notes what it was asked."""

    def __init__(self, status: int = 200, down: bool = False) -> None:
        self.asked: list[httpx.Request] = []
        self.status, self.down = status, down

    def client(self) -> PolicyClient:
        return PolicyClient(httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url="http://policy"))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.down:
            raise httpx.ConnectError("refused")
        return httpx.Response(self.status, text="cannot generate", headers={"x-policy-version": "12"})


async def test_ready_names_the_version_that_generated() -> None:
    policy = Policy()
    found = await policy.client().ready({})
    assert (found.ready, found.version) == (True, 12)
    assert policy.asked[0].url.path == "/v1/ready"


async def test_not_ready_says_why() -> None:
    found = await Policy(status=503).client().ready({})
    assert not found.ready
    assert "503" in found.reason
    assert "cannot generate" in found.reason


async def test_a_policy_that_is_down_is_not_ready() -> None:
    found = await Policy(down=True).client().ready({})
    assert not found.ready
    assert "ConnectError" in found.reason


async def test_concurrent_questions_share_one_token() -> None:
    policy = Policy()
    client = policy.client()
    assert all(found.ready for found in await asyncio.gather(*(client.ready({}) for _ in range(20))))
    assert len(policy.asked) == 1


async def test_a_header_that_is_not_ascii_is_passed_on_as_it_came() -> None:
    policy = Policy()
    sent = httpx.Headers([(b"authorization", b"Bearer \xe9"), (b"accept", b"\xff")], encoding="latin-1")
    await policy.client().forward("GET", "/version", sent, b"")
    assert (b"authorization", b"Bearer \xe9") in policy.asked[0].headers.raw
    assert await policy.client().metrics(sent) is not None
    assert (await policy.client().ready(sent)).ready


async def test_only_the_key_and_the_content_kind_are_passed_on() -> None:
    policy = Policy()
    await policy.client().forward("POST", "/tokenize", {"authorization": "Bearer k", "cookie": "secret"}, b"{}")
    assert policy.asked[0].headers["authorization"] == "Bearer k"
    assert "cookie" not in policy.asked[0].headers
    assert policy.asked[0].url.path == "/v1/tokenize"


async def test_metrics_of_a_policy_that_is_down_are_absent() -> None:
    assert await Policy(down=True).client().metrics({}) is None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("serving.internal", "http://serving.internal:8000"),
    ],
)
def test_a_wildcard_address_is_reached_on_loopback(host: str, url: str) -> None:
    assert base_url(host, 8000) == url
