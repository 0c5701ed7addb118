"""The policy application as the operations application sees it: over HTTP, on the service's own port."""

import asyncio
import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

FORWARDED_REQUEST_HEADERS = ("authorization", "x-api-key", "content-type", "accept")
READY_TIMEOUT_S = 30.0
"""A token from a busy engine takes seconds; an engine that needs longer is not ready."""
READY_MAX_AGE_S = 1.0
"""Answers to ``/ready`` are shared for this long, so that asking often does not keep the engine busy."""


def base_url(host: str, port: int) -> str:
    """Where this machine reaches the service: a wildcard address stands for loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"


@dataclass(frozen=True)
class Readiness:
    """Whether a token was generated just now; otherwise why not."""

    ready: bool
    reason: str = ""
    version: int | None = None


class PolicyClient:
    """Asks the policy application. `http` carries the base URL; its life is the caller's."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._lock = asyncio.Lock()
        self._last: tuple[float, Readiness] = (-READY_MAX_AGE_S, Readiness(False, "not asked yet"))

    async def ready(self, headers: Mapping[str, str]) -> Readiness:
        """``GET /v1/ready``, which generates a token. Concurrent callers share one question. Raises nothing."""
        async with self._lock:
            asked_at, answer = self._last
            if time.monotonic() - asked_at >= READY_MAX_AGE_S:
                answer = await self._ask_ready(headers)
                self._last = (time.monotonic(), answer)
            return answer

    async def _ask_ready(self, headers: Mapping[str, str]) -> Readiness:
        try:
            response = await self._http.get("/v1/ready", headers=select_headers(headers), timeout=READY_TIMEOUT_S)
        except httpx.HTTPError as error:
            return Readiness(False, f"the policy application does not answer: {type(error).__name__}")
        version = response.headers.get("x-policy-version", "")
        if response.is_success:
            return Readiness(True, version=int(version) if version.isdigit() else None)
        return Readiness(False, f"the policy application answered {response.status_code}: {response.text[:300]}")

    async def metrics(self, headers: Mapping[str, str]) -> str | None:
        """The Prometheus text of the policy application, None where it cannot be had."""
        try:
            response = await self._http.get("/v1/metrics", headers=select_headers(headers), timeout=10.0)
        except httpx.HTTPError:
            return None
        return response.text if response.is_success else None

    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> httpx.Response:
        """The answer to ``/v1<path>``. Raises httpx.HTTPError when there is none."""
        return await self._http.request(method, f"/v1{path}", headers=select_headers(headers), content=body)


def select_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """What is passed on of the caller's headers: its key and the kind of its content, nothing else.

    As the bytes that came: HTTP lets a value hold more than ASCII.
    """
    return [(name.encode(), headers[name].encode("latin-1")) for name in FORWARDED_REQUEST_HEADERS if name in headers]
