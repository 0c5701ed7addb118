"""What trains is what was sampled: generated conversations through the real engine, to the token.

What the engine sampled is known from its own answers (`return_token_ids`), which no part of ours has touched.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from feedback.assembly import assemble, unusable_reason
from serving.schemas import Generation
from tests.serving.conftest import Policy

pytestmark = pytest.mark.engine

BATCH = 50
"""Conversations held at a time: one alone leaves most of the engine idle."""
BATCHES = 4
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=24)


@dataclass(frozen=True)
class Turn:
    """One request of a conversation: what the user says, and how the answer is sampled and sent."""

    says: str
    n: int
    stream: bool
    sampling: dict[str, Any]
    rewrites: bool
    """The client changes the answer before it, as where a user edits it: the past is no longer what was sampled."""


@dataclass
class Sampled:
    """What the engine says that it read and sampled, by (inference, choice)."""

    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""


SAMPLING = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 6), "temperature": st.sampled_from([0.0, 0.7, 1.0, 1.6])},
    optional={
        "top_p": st.floats(0.5, 1.0),
        "seed": st.integers(0, 1 << 30),
        "stop": st.sampled_from([["."], [" the"]]),
    },
)
TURNS = st.builds(
    Turn, says=WORDS, n=st.integers(1, 2), stream=st.booleans(), sampling=SAMPLING, rewrites=st.booleans()
)
CONVERSATIONS = st.lists(st.lists(TURNS, min_size=1, max_size=3), min_size=BATCH, max_size=BATCH)


async def ask(client: openai.AsyncOpenAI, episode: str, messages: list[dict[str, Any]], turn: Turn) -> list[Sampled]:
    """The answers to `messages`, one for each choice, as the engine gave them."""
    n = turn.n if turn.sampling["temperature"] else 1
    found = [Sampled() for _ in range(n)]
    request: dict[str, Any] = {"model": "policy", "messages": messages, "n": n, **turn.sampling}
    request |= {"extra_body": {"return_token_ids": True}, "extra_headers": {"x-episode-id": episode}}
    if not turn.stream:
        answer = (await client.chat.completions.create(**request)).model_dump()
        for choice in answer["choices"]:
            sampled = found[choice["index"]]
            sampled.prompt, sampled.tokens = answer["prompt_token_ids"], choice["token_ids"]
            sampled.text = choice["message"]["content"] or ""
        return found
    prompt: list[int] = []
    async for chunk in await client.chat.completions.create(stream=True, **request):
        part = chunk.model_dump()
        prompt = part.get("prompt_token_ids") or prompt
        for choice in part["choices"]:
            sampled = found[choice["index"]]
            sampled.tokens += choice.get("token_ids") or []
            sampled.text += choice["delta"].get("content") or ""
    for sampled in found:
        sampled.prompt = prompt
    return found


async def converse(client: openai.AsyncOpenAI, episode: str, turns: list[Turn]) -> list[Sampled]:
    """All that was sampled in one conversation; the first choice is what it goes on with."""
    messages: list[dict[str, Any]] = []
    found: list[Sampled] = []
    for turn in turns:
        if turn.rewrites and messages:
            messages[-1] = {"role": "assistant", "content": "Never mind."}
        messages.append({"role": "user", "content": turn.says})
        answers = await ask(client, episode, messages, turn)
        found += answers
        messages.append({"role": "assistant", "content": answers[0].text})
    return found


def collect(policy: Policy, episode: str, wanted: int) -> list[Generation]:
    for _ in range(100):
        found = [one for one in policy.generations.values() if one.episode_id == episode]
        if len(found) >= wanted:
            return found
        policy.collect()
    raise AssertionError(f"{episode}: {wanted} answers, {len(found)} generations in the log")


def test_two_hundred_conversations_train_on_exactly_what_was_sampled(policy: Policy):
    count = 0

    # Each draw is a batch of conversations and costs seconds: reported as it was found, not made smaller.
    @settings(
        max_examples=BATCHES,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(CONVERSATIONS)
    def check(batch: list[list[Turn]]) -> None:
        nonlocal count
        episodes = {f"exact-{count + number}": turns for number, turns in enumerate(batch)}
        count += len(batch)

        async def hold() -> list[list[Sampled]]:
            async with policy.async_client() as client:
                return await asyncio.gather(*(converse(client, *episode) for episode in episodes.items()))

        for episode, sampled in zip(episodes, asyncio.run(hold()), strict=True):
            check_episode(sampled, collect(policy, episode, len(sampled)))

    check()
    assert count >= 200


def check_episode(sampled: list[Sampled], generations: list[Generation]) -> None:
    """The trajectories of an episode hold every sampled token once, behind the very tokens that the engine read."""
    drafts = assemble([generation for generation in generations if unusable_reason(generation) is None])
    trained: list[tuple[list[int], list[int]]] = []
    for draft in drafts:
        assert len(draft.action_mask) == len(draft.token_ids)
        assert sum(draft.action_mask) == len(draft.behavior_logprobs)
        assert sum(draft.action_mask) == sum(len(generation.token_ids) for generation in draft.generations)
        for generation in draft.generations:
            start = len(generation.prompt_token_ids)
            actions = draft.token_ids[start : start + len(generation.token_ids)]
            assert all(draft.action_mask[start : start + len(generation.token_ids)])
            trained.append((list(draft.token_ids[:start]), list(actions)))
    # An answer of no token (a stop at once) has nothing to train on.
    assert sorted(trained) == sorted((one.prompt, one.tokens) for one in sampled if one.tokens)
    assert sorted(one.text for one in generations) == sorted(one.text for one in sampled)
