"""A bare client of chat completions that notes when each token arrives.

Light on purpose: it shares its machine with the server that it measures. What arrives is taken apart after the last
token has come.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

LIMIT_SECONDS = 120.0


class RequestFailed(Exception):
    """No complete answer came. The message says what did."""


class RequestHung(RequestFailed):
    """No end came within the limit."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. The answer has exactly `tokens` tokens."""

    text: str
    tokens: int
    stream: bool
    model: str = "policy"
    temperature: float = 1.0
    system: str | None = None
    """None: what the chat template puts there."""

    def body(self) -> dict[str, Any]:
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*messages, {"role": "user", "content": self.text}],
            "max_tokens": self.tokens,
            "min_tokens": self.tokens,
            "ignore_eos": True,
            "temperature": self.temperature,
            "top_p": 1.0,
        }
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


@dataclass(frozen=True, slots=True)
class Reply:
    """One complete answer. Times are seconds of `time.perf_counter`."""

    began: float
    ended: float
    arrivals: tuple[float, ...]
    """Of each chunk of a stream that brought tokens; empty where it was no stream."""
    tokens: int
    text: str
    headers: Mapping[str, str]

    @property
    def first_token(self) -> float | None:
        """Seconds from the question to the first token of a stream."""
        return self.arrivals[0] - self.began if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between one chunk of a stream and the next."""
        return [after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections of its own: servers close idle ones after seconds, and a request must not meet that."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        yield session


async def ask(session: aiohttp.ClientSession, question: Question, limit_seconds: float = LIMIT_SECONDS) -> Reply:
    """Raises RequestFailed."""
    began = time.perf_counter()
    try:
        async with (
            asyncio.timeout(limit_seconds),
            session.post("/v1/chat/completions", json=question.body()) as response,
        ):
            if response.status != 200:
                raise RequestFailed(f"status {response.status}: {(await response.text())[:300]}")
            headers = {name.lower(): value for name, value in response.headers.items()}
            if not question.stream:
                whole = await response.read()
                ended = time.perf_counter()
                tokens, text = read_answer(whole)
                arrivals: tuple[float, ...] = ()
            else:
                lines = [(time.perf_counter(), line) async for line in response.content if line.startswith(b"data: ")]
                ended = time.perf_counter()
                arrivals, tokens, text = read_stream(lines)
    except TimeoutError:
        raise RequestHung(f"no end within {limit_seconds:.0f} s") from None
    except aiohttp.ClientError as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
    if tokens != question.tokens:
        raise RequestFailed(f"{tokens} tokens came, not {question.tokens}")
    return Reply(began, ended, arrivals, tokens, text, headers)


def read_answer(body: bytes) -> tuple[int, str]:
    """(tokens, text) of an answer that came whole. Raises RequestFailed."""
    try:
        answer = json.loads(body)
        return answer["usage"]["completion_tokens"], answer["choices"][0]["message"]["content"] or ""
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise RequestFailed(f"not a chat completion: {type(error).__name__}") from error


def read_stream(lines: Sequence[tuple[float, bytes]]) -> tuple[tuple[float, ...], int, str]:
    """(arrivals of the chunks that brought tokens, tokens, text) of a stream's timed ``data:`` lines.

    The chunk that only names the role brings none. Raises RequestFailed for an error within the stream, and for one
    that breaks off.
    """
    arrivals: list[float] = []
    texts: list[str] = []
    tokens = 0
    if not lines or lines[-1][1].strip() != b"data: [DONE]":
        raise RequestFailed("the stream broke off")
    for at, line in lines[:-1]:
        try:
            event = json.loads(line.removeprefix(b"data: "))
        except ValueError as error:
            raise RequestFailed("a line of the stream is not JSON") from error
        if "error" in event:
            raise RequestFailed(f"an error within the stream: {str(event['error'])[:300]}")
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            if "role" not in delta and "content" in delta:
                arrivals.append(at)
                texts.append(delta["content"] or "")
    return tuple(arrivals), tokens, "".join(texts)
