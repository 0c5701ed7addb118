"""One block of load on one server: so many streams, each with some requests one after the other, all of one length."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

from benchmarks.chat import Question, Reply, RequestFailed, ask, connect
from online_rl.demo.topics import TRAINING_TOPICS

WARM_UP = Question("Are you awake?", tokens=4, stream=False)


@dataclass(frozen=True, slots=True)
class Workload:
    """Every block of one row asks the same of each server."""

    streams: int
    stream: bool
    requests: int
    """Of each stream, one after the other."""
    tokens: int
    """Of each answer."""

    @property
    def name(self) -> str:
        return f"{self.streams} {'streamed' if self.stream else 'whole'}"


@dataclass(slots=True)
class Block:
    """What one block measured. Times in seconds."""

    seconds: float = 0.0
    tokens: int = 0
    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    def add(self, reply: Reply) -> None:
        self.tokens += reply.tokens
        self.gaps += reply.gaps
        if reply.first_token is not None:
            self.first_tokens.append(reply.first_token)


class Questions:
    """No two are the same, so that no prefix cache has one, and all of a topic have the same number of tokens."""

    def __init__(self, seed: int = 0) -> None:
        self._numbers = count(seed * 100_000)

    def draw(self, amount: int) -> list[str]:
        """The topics are the same at each call, so that every block of a row meets the same lengths."""
        topics = [TRAINING_TOPICS[index % len(TRAINING_TOPICS)] for index in range(amount)]
        return [f"[{next(self._numbers):06d}] What do you think about {topic}?" for topic in topics]


After = Callable[[Reply], Coroutine[Any, Any, None]]
"""What is done about each answer while the load goes on."""


async def run_block(url: str, workload: Workload, questions: Questions, after: After | None = None) -> Block:
    """The clock runs from the first question to the last answer; what `after` does is waited for behind it."""
    texts = questions.draw(workload.streams * workload.requests)
    block = Block()
    done: list[asyncio.Task[None]] = []

    async def run_stream(session: aiohttp.ClientSession, own: Iterator[str]) -> None:
        for text in own:
            try:
                reply = await ask(session, Question(text, workload.tokens, workload.stream))
            except RequestFailed as error:
                block.failures.append(str(error))
                continue
            block.add(reply)
            if after is not None:
                done.append(asyncio.create_task(after(reply)))

    async with connect(url) as session:
        await ask(session, WARM_UP)
        began = time.perf_counter()
        streams = (run_stream(session, iter(texts[index :: workload.streams])) for index in range(workload.streams))
        await asyncio.gather(*streams)
        block.seconds = time.perf_counter() - began
    await asyncio.gather(*done)
    return block


class Rater:
    """Posts a rating of each answer, so that the learner has something to learn from. The ratings are random."""

    def __init__(self, url: str, seed: int = 0) -> None:
        self._url = url
        self._random = random.Random(seed)
        self.accepted = 0

    async def rate(self, reply: Reply) -> None:
        """Raises RequestFailed where the service does not take it."""
        body = {"inference_id": reply.headers["x-inference-id"], "value": float(self._random.random() < 0.5)}
        async with connect(self._url) as session, session.post("/v1/feedback", json=body) as response:
            if response.status != 202:
                raise RequestFailed(f"feedback: status {response.status}: {(await response.text())[:300]}")
        self.accepted += 1
