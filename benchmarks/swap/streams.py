"""Steady streams over HTTP, each answer met with what the service captured of it."""

import asyncio
import itertools
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp

from benchmarks.chat import Question, Reply, RequestFailed, RequestHung, ask, connect
from benchmarks.swap.judge import Tokens, count_tokens
from benchmarks.swap.replica import Replica
from online_rl.demo.topics import TRAINING_TOPICS
from serving.schemas import Generation

HUNG_SECONDS = 60.0
MEET_SECONDS = 0.2
LAST_SECONDS = 20.0
"""How long after the last answer its record may come."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, as a client met them."""

    first_tokens: array = field(default_factory=lambda: array("d"))
    gaps: array = field(default_factory=lambda: array("d"))

    def add(self, reply: Reply) -> None:
        self.gaps.extend(reply.gaps)
        self.first_tokens.append(reply.first_token or 0.0)


@dataclass(slots=True)
class Seen:
    """Of one phase: `control`, or `swaps`."""

    requests: int = 0
    failed: int = 0
    hung: int = 0
    uncaptured: int = 0
    """Complete answers without a record, or whose record says another text."""
    wrong_header: int = 0
    """Answers whose header ``x-policy-version`` is not the version recorded for the first token."""
    spanning: int = 0
    """Answers that several versions sampled."""
    tokens: Tokens = field(default_factory=Tokens)
    times: Times = field(default_factory=Times)
    calm: Times = field(default_factory=Times)
    """The same of answers during which there was no swap."""
    reasons: list[str] = field(default_factory=list)
    disturbed: list[Generation] = field(default_factory=list)
    """Some that were in flight during a swap and have one version."""
    undisturbed: list[Generation] = field(default_factory=list)
    """Some during which there was no swap."""


@dataclass(frozen=True, slots=True)
class _Answered:
    reply: Reply
    seen: Seen
    disturbed: bool


def make_question(index: int, number: int, tokens: int) -> Question:
    """Short, since a long prompt costs more than what is measured. No two with another `number` are the same."""
    topic = TRAINING_TOPICS[index % len(TRAINING_TOPICS)]
    return Question(f"{number:06d} {topic}?", tokens, stream=True, system="")


class Streams:
    """`count` streams that ask as long as the block runs. `phase` says where what they see is counted."""

    def __init__(self, replica: Replica, favourites: list[int], *, count: int, tokens: int, samples: int) -> None:
        self._replica = replica
        self._favourites = favourites
        self._count = count
        self._tokens = tokens
        self._samples = samples
        self._numbers = itertools.count()
        self._answered: dict[str, _Answered] = {}
        self._generations: dict[str, Generation] = {}
        self._stopped = False
        self._changes = 0
        """Odd while a swap is under way."""
        self.phase = Seen()

    @contextmanager
    def swapping(self) -> Iterator[None]:
        """What is in flight within the block counts as disturbed."""
        self._changes += 1
        try:
            yield
        finally:
            self._changes += 1

    async def run(self) -> None:
        """Until `stop`; then every answer has been met, or counted as uncaptured."""
        async with asyncio.TaskGroup() as group:
            meeting = group.create_task(self._meet())
            async with connect(self._replica.url) as session:
                await asyncio.gather(*(self._run_stream(session, index) for index in range(self._count)))
            loop = asyncio.get_running_loop()
            deadline = loop.time() + LAST_SECONDS
            while self._answered and loop.time() < deadline:
                await asyncio.sleep(MEET_SECONDS)
            meeting.cancel()
        for answered in self._answered.values():
            answered.seen.uncaptured += 1

    def stop(self) -> None:
        self._stopped = True

    async def _run_stream(self, session: aiohttp.ClientSession, index: int) -> None:
        while not self._stopped:
            question = make_question(index, next(self._numbers), self._tokens)
            seen, changes = self.phase, self._changes
            seen.requests += 1
            try:
                reply = await ask(session, question, HUNG_SECONDS)
            except RequestFailed as error:
                if isinstance(error, RequestHung):
                    seen.hung += 1
                else:
                    seen.failed += 1
                seen.reasons.append(str(error))
                await asyncio.sleep(0.1)
                continue
            disturbed = changes % 2 == 1 or changes != self._changes
            seen.times.add(reply)
            if not disturbed:
                seen.calm.add(reply)
            self._answered[reply.headers["x-inference-id"].partition("-")[2]] = _Answered(reply, seen, disturbed)

    async def _meet(self) -> None:
        while True:
            self._generations |= {generation.inference_id: generation for generation in self._replica.log.take()}
            for name in self._answered.keys() & self._generations.keys():
                self._judge(self._answered.pop(name), self._generations.pop(name))
            await asyncio.sleep(MEET_SECONDS)

    def _judge(self, answered: _Answered, generation: Generation) -> None:
        seen, reply = answered.seen, answered.reply
        if generation.text != reply.text or len(generation.token_ids) != reply.tokens:
            seen.uncaptured += 1
        if reply.headers.get("x-policy-version") != str(generation.spans[0].version):
            seen.wrong_header += 1
        seen.spanning += len(generation.spans) > 1
        seen.tokens += count_tokens(generation.token_ids, generation.spans, self._favourites)
        kept = seen.disturbed if answered.disturbed else seen.undisturbed
        if len(generation.spans) == 1 and len(kept) < self._samples:
            kept.append(generation)
