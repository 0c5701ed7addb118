"""Simulated users: they ask, read the answer, and rate it, over HTTP only, as customers would."""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import openai
from openai.types.chat import ChatCompletionMessageParam

from online_rl.demo.options import DemoError
from online_rl.demo.pacing import Pace, ServiceStatus
from online_rl.demo.styles import MAX_NEW_TOKENS, TEMPERATURE, build_messages, score_answer
from online_rl.demo.topics import TRAINING_TOPICS

log = logging.getLogger(__name__)

CONCURRENCY = 16
"""Conversations open at a time: a batch of the learner, so that the engine decodes one together. With 14 the last two
ran alone behind the others, at nearly the price of all."""
STREAMED_SHARE = 0.5
CHAT_TIMEOUT_S = 120.0
FEEDBACK_TRIES = 12
BACKOFF_S = 0.25
LONGEST_BACKOFF_S = 20.0
ASK_AGAIN_S = 1.0
STATUS_SECONDS = 0.5
STALL_SECONDS = 600.0
MODEL = "policy"


@dataclass(frozen=True)
class Answer:
    """One complete answer."""

    inference_id: str
    text: str
    finish_reason: str | None
    version: int
    """Of the header ``x-policy-version``: the weights that sampled the first token."""
    choice: int = 0
    """Which of the request's `n` answers."""


@dataclass(frozen=True)
class Rating:
    """One answer rated and acknowledged."""

    reward: float
    version: int


class ServiceClient:
    """The three routes that a customer needs, and the operator's status. Counts what fails."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=30.0)
        self._openai = openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key=api_key or "none",
            timeout=CHAT_TIMEOUT_S,
            max_retries=0,  # a failed request must count as one
        )
        self.requests = 0
        self.failed_requests = 0
        self.feedback_accepted = 0

    async def close(self) -> None:
        await self._openai.close()
        await self._http.aclose()

    async def ask(
        self, topic: str, *, user: str, stream: bool, train: bool = True, answers: int = 1
    ) -> list[Answer] | None:
        """The service's answers to one request, in order, or None where it failed, which is counted."""
        self.requests += 1
        try:
            return await self._ask(topic, user, stream, train, answers)
        except (openai.OpenAIError, ValueError) as error:  # ValueError: an answer that is not what was asked for
            self.failed_requests += 1
            log.warning("a chat request failed: %s", type(error).__name__)
            return None

    async def _ask(self, topic: str, user: str, stream: bool, train: bool, answers: int) -> list[Answer]:
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": system} if role == "system" else {"role": "user", "content": system}
            for role, system in ((message["role"], message["content"]) for message in build_messages(topic))
        ]
        create = self._openai.chat.completions.with_raw_response.create
        headers = {} if train else {"x-train": "false"}
        if not stream:
            raw = await create(
                model=MODEL, messages=messages, max_tokens=MAX_NEW_TOKENS, temperature=TEMPERATURE, top_p=1.0,
                user=user, n=answers, extra_headers=headers,
            )  # fmt: skip
            completion = raw.parse()
            whole = {
                choice.index: (choice.message.content or "", choice.finish_reason) for choice in completion.choices
            }
            return read_answers(raw.headers, whole, answers)
        raw = await create(
            model=MODEL, messages=messages, max_tokens=MAX_NEW_TOKENS, temperature=TEMPERATURE, top_p=1.0,
            user=user, n=answers, extra_headers=headers, stream=True,
        )  # fmt: skip
        parts: dict[int, tuple[str, str | None]] = {}
        async for chunk in raw.parse():
            for choice in chunk.choices:
                text, finish_reason = parts.get(choice.index, ("", None))
                parts[choice.index] = text + (choice.delta.content or ""), choice.finish_reason or finish_reason
        return read_answers(raw.headers, parts, answers)

    async def rate(self, inference_id: str, reward: float, *, user: str, key: str, choice: int = 0) -> None:
        """Post the reward until it is acknowledged; the key makes a retry count once.

        Raises DemoError where the service refuses it, or cannot be reached for minutes.
        """
        body = {"inference_id": inference_id, "value": reward, "user": user, "idempotency_key": key}
        body |= {"choice_index": choice} if choice else {}
        reason = ""
        for attempt in range(FEEDBACK_TRIES):
            if attempt:
                await asyncio.sleep(min(LONGEST_BACKOFF_S, BACKOFF_S * 2**attempt))
            try:
                response = await self._http.post("/v1/feedback", json=body)
            except httpx.HTTPError as error:
                reason = type(error).__name__
                continue
            if response.is_success:
                self.feedback_accepted += 1
                return
            reason = f"{response.status_code} {response.text[:300]}"
            if response.status_code < 500 and response.status_code not in (408, 425, 429):
                raise DemoError(f"the service refused a feedback: {reason}")
        raise DemoError(f"a feedback was not acknowledged after {FEEDBACK_TRIES} tries ({reason}); see the logs")

    async def read_status(self) -> ServiceStatus | None:
        """``GET /admin/status``, or None where it cannot be had just now. Raises DemoError where it is forbidden."""
        try:
            response = await self._http.get("/admin/status")
        except httpx.HTTPError as error:
            log.info("no status: %s", type(error).__name__)
            return None
        if response.status_code in (401, 403, 404):
            raise DemoError(f"GET /admin/status answered {response.status_code}; is this service an online-rl?")
        return ServiceStatus.model_validate_json(response.content) if response.is_success else None

    async def is_ready(self) -> bool:
        try:
            return (await self._http.get("/ready")).is_success
        except httpx.HTTPError:
            return False


class MalformedAnswer(ValueError):
    """A 2xx answer that a customer could not use."""


def read_answers(headers: Mapping[str, str], choices: Mapping[int, tuple[str, str | None]], count: int) -> list[Answer]:
    """The answers of one response from its (text, finish reason) by choice.

    Raises MalformedAnswer naming the header that is missing, or what is wrong with the choices.
    """
    if sorted(choices) != list(range(count)):
        raise MalformedAnswer(f"{count} answers were asked for, choices {sorted(choices)} came")
    if any(reason is None for _, reason in choices.values()):
        raise MalformedAnswer("an answer ended without a finish reason")
    for name in ("x-inference-id", "x-policy-version"):
        if name not in headers:
            raise MalformedAnswer(f"the response has no header {name}")
    try:
        version = int(headers["x-policy-version"])
    except ValueError:
        raise MalformedAnswer(f"x-policy-version is {headers['x-policy-version']!r}, not a number") from None
    return [
        Answer(headers["x-inference-id"], text.strip(), reason, version, index)
        for index, (text, reason) in sorted(choices.items())
    ]


class Users:
    """A crowd with one taste at a time."""

    def __init__(self, client: ServiceClient, pace: Pace, seed: int, answers: int = 1) -> None:
        """They ask for `answers` answers to each question, and rate all of them."""
        self.client = client
        self.pace = pace
        self._seed = seed
        self._answers = answers
        self._moved_at = time.monotonic()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Keep `pace.status` fresh while the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            status = await self.client.read_status()
            if status is not None:
                if status.consumed != self.pace.status.consumed:
                    self._moved_at = time.monotonic()
                self.pace.status = status
            await asyncio.sleep(STATUS_SECONDS)

    async def run_phase(self, index: int, style: str, start: int, count: int, rated: Callable[[Rating], None]) -> None:
        """Have conversations until trajectories ``start <= i < count`` of the phase are rated; `rated` hears of each.

        Raises DemoError where the service refuses feedback or the learner takes nothing for ten minutes.
        """
        numbers = iter(range(start, count, self._answers))
        self._moved_at = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(self._talk(index, style, numbers, rated))
        except ExceptionGroup as errors:
            if errors.split(DemoError)[1] is not None:
                raise
            raise errors.exceptions[0] from None  # one reason is enough for the person who reads it

    async def _talk(self, phase: int, style: str, numbers: Iterator[int], rated: Callable[[Rating], None]) -> None:
        for number in numbers:
            await self._wait_for_pace()
            self.pace.in_flight += self._answers
            try:
                ratings = await self._converse(phase, style, number)
            finally:
                self.pace.in_flight -= self._answers
            self.pace.rated += len(ratings)
            for rating in ratings:
                rated(rating)

    async def _wait_for_pace(self) -> None:
        while not self.pace.may_ask:
            if self.pace.in_flight:
                self._moved_at = time.monotonic()
            if time.monotonic() - self._moved_at > STALL_SECONDS:
                raise DemoError(
                    f"the learner took no trajectory for {STALL_SECONDS:.0f} s; see the data folder's logs/"
                )
            await asyncio.sleep(0.1)

    async def _converse(self, phase: int, style: str, number: int) -> list[Rating]:
        """One question, its answers rated. A failed request is counted and asked again, as a customer would."""
        rng = random.Random(f"{self._seed}/{phase}/{number}")
        topic = rng.choice(TRAINING_TOPICS)
        user = f"customer-{rng.randrange(40):02d}"
        stream = rng.random() < STREAMED_SHARE
        while True:
            answers = await self.client.ask(topic, user=user, stream=stream, answers=self._answers)
            if answers is not None:
                break
            await asyncio.sleep(ASK_AGAIN_S)
        ratings: list[Rating] = []
        for answer in answers:
            reward = score_answer(style, answer.text)
            key = f"demo/{answer.inference_id}/{answer.choice}"
            await self.client.rate(answer.inference_id, reward, user=user, key=key, choice=answer.choice)
            ratings.append(Rating(reward, answer.version))
        return ratings
