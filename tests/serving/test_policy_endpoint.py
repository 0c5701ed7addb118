"""The real engine behind Ray Serve: what clients see, and whether what was captured is true."""

import asyncio
import json
import shutil
import statistics
import time
from typing import Any

import httpx
import openai
import pytest

from online_rl.schemas import VersionState
from tests.serving.conftest import Policy

pytestmark = pytest.mark.engine

QUESTION = [{"role": "user", "content": "What do you think about the sea?"}]


def distance(policy: Policy, model, generation) -> float:
    """Mean |Δ| of the captured log-probabilities to a float32 forward of `model`."""
    tokens = [*generation.prompt_token_ids, *generation.token_ids]
    expected = policy.workshop.logprobs(model, tokens)[len(generation.prompt_token_ids) - 1 :]
    return statistics.fmean(abs(a - b) for a, b in zip(generation.behavior_logprobs, expected, strict=True))


def test_a_plain_answer_is_captured_exactly(policy: Policy):
    raw = policy.client().chat.completions.with_raw_response.create(
        model="policy", messages=QUESTION, max_tokens=24, temperature=1.0, user="user-1"
    )
    answer = raw.parse()
    assert raw.headers["x-inference-id"] == answer.id
    assert raw.headers["x-policy-version"] == "0"
    assert answer.choices[0].logprobs is None
    generation = policy.generation(answer.id)
    assert raw.headers["x-episode-id"] == generation.inference_id
    assert generation.text == answer.choices[0].message.content
    assert answer.usage is not None
    assert len(generation.prompt_token_ids) == answer.usage.prompt_tokens
    assert len(generation.token_ids) == answer.usage.completion_tokens
    rendered = policy.workshop.tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)["input_ids"]
    assert list(generation.prompt_token_ids) == rendered
    assert policy.workshop.tokenizer.decode(generation.token_ids, skip_special_tokens=True) == generation.text
    assert [(span.start, span.end, span.version) for span in generation.spans] == [(0, len(generation.token_ids), 0)]
    assert (generation.user_id, generation.episode_id, generation.trainable) == ("user-1", None, True)
    assert distance(policy, policy.workshop.base_model, generation) < 0.08


def test_a_stream_streams_and_is_captured_exactly(policy: Policy):
    headers = {"x-episode-id": "episode-7", "x-train": "false", "x-tags": "app=test,arm=b", "x-user-id": "user-2"}
    with policy.client().chat.completions.with_streaming_response.create(
        model="policy", messages=QUESTION, max_tokens=24, temperature=1.0, stream=True, extra_headers=headers
    ) as response:
        assert response.headers["x-episode-id"] == "episode-7"
        assert response.headers["x-policy-version"] == "0"
        inference_id = response.headers["x-inference-id"]
        arrivals, text = [], ""
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert chunk["id"] == inference_id
                for choice in chunk["choices"]:
                    assert choice.get("logprobs") is None
                    text += choice["delta"].get("content") or ""
                arrivals.append(time.monotonic())
    assert len(arrivals) > 10
    assert arrivals[-1] - arrivals[0] > 0.1  # they did not come all at once
    generation = policy.generation(inference_id)
    assert generation.text == text
    assert (generation.episode_id, generation.user_id) == ("episode-7", "user-2")
    assert generation.tags == {"app": "test", "arm": "b"}
    assert (generation.trainable, generation.untrainable_reason) == (False, "x-train: false")
    assert distance(policy, policy.workshop.base_model, generation) < 0.08


def test_logprobs_that_were_asked_for_are_answered_and_are_the_captured_ones(policy: Policy):
    answer = policy.client().chat.completions.create(
        model="policy", messages=QUESTION, max_tokens=8, logprobs=True, top_logprobs=2, temperature=0.7, n=2
    )
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        generation = policy.generation(answer.id, choice=choice.index)
        assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx(generation.behavior_logprobs)
        assert generation.sampling.n == 2


def test_completions_of_several_prompts_are_told_apart(policy: Policy):
    prompts = ["The sea is", "Bread needs"]
    answer = policy.client().completions.create(model="policy", prompt=prompts, max_tokens=6)
    assert len(answer.choices) == 2
    for index, prompt in enumerate(prompts):
        generation = policy.generation(answer.id, prompt=index)
        assert list(generation.prompt_token_ids) == policy.workshop.tokenizer(prompt).input_ids
        assert generation.text == answer.choices[index].text


def test_responses_carry_our_id_and_are_captured(policy: Policy):
    raw = policy.client().responses.with_raw_response.create(
        model="policy", input="What do you think about rain?", max_output_tokens=8, metadata={"episode_id": "episode-8"}
    )
    answer = raw.parse()
    assert raw.headers["x-inference-id"] == answer.id
    assert policy.generation(answer.id).episode_id == "episode-8"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 4}),
        ("/v1/completions", {"prompt": "Rain", "max_tokens": 4}),
        ("/v1/responses", {"input": "What do you think about rain?", "max_output_tokens": 4}),
        ("/v1/messages", {"messages": QUESTION, "max_tokens": 4}),
    ],
)
def test_every_generating_route_names_inference_episode_version_and_token(
    policy: Policy, path: str, body: dict[str, Any], stream: bool
):
    request = {"model": "policy", "stream": stream, **body}
    with httpx.stream("POST", f"{policy.url}{path}", json=request, timeout=60) as response:
        assert response.status_code == 200, response.read()
        text = "".join(response.iter_text())
    assert response.headers["x-inference-id"] in text
    assert response.headers["x-feedback-token"]
    generation = policy.generation(response.headers["x-inference-id"])
    assert response.headers["x-episode-id"] == generation.inference_id
    assert int(response.headers["x-policy-version"]) == generation.spans[0].version


def test_a_client_s_own_request_id_is_kept_but_is_not_the_id(policy: Policy):
    answer = policy.client().chat.completions.create(
        model="policy", messages=QUESTION, max_tokens=2, extra_headers={"x-request-id": "mine-1"}
    )
    assert "mine-1" not in answer.id
    assert policy.generation(answer.id).client_request_id == "mine-1"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_is_captured(policy: Policy, stream: bool):
    policy.collect()
    known = set(policy.generations)
    request = {"model": "policy", "messages": QUESTION, "max_tokens": 400, "stream": stream, "min_tokens": 400}
    async with httpx.AsyncClient(base_url=policy.url, timeout=60) as http:
        if stream:
            async with http.stream("POST", "/v1/chat/completions", json=request) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        break
                await asyncio.sleep(1.0)
        else:
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/v1/chat/completions", json=request, timeout=3.0)
    deadline = time.monotonic() + 20
    while not (new := set(policy.generations) - known) and time.monotonic() < deadline:
        policy.collect()
    (key,) = new
    generation = policy.generations[key]
    assert generation.finish_reason == "abort"
    assert 0 < len(generation.token_ids) < 400
    assert distance(policy, policy.workshop.base_model, generation) < 0.08


def test_models_lists_what_is_servable_with_its_parent(policy: Policy):
    cards = {card.id: card for card in policy.client().models.list().data}
    assert set(cards) == {"policy", "policy@v0"}
    assert policy.client().chat.completions.create(model="policy@v0", messages=QUESTION, max_tokens=1).choices


@pytest.mark.parametrize("model", ["policy@v99", "gpt-4"])
def test_an_unknown_model_is_a_404_that_says_what_there_is(policy: Policy, model: str):
    with pytest.raises(openai.NotFoundError) as caught:
        policy.client().chat.completions.create(model=model, messages=QUESTION, max_tokens=1)
    assert model in caught.value.message
    assert "policy" in caught.value.message


@pytest.mark.parametrize(
    "path", ["load_lora_adapter", "unload_lora_adapter", "sleep", "collective_rpc", "update_weights", "pause"]
)
def test_the_engine_s_dangerous_routes_do_not_exist(policy: Policy, path: str):
    assert httpx.post(f"{policy.url}/v1/{path}", json={}).status_code == 404


def test_trap_19_ready_generates_a_token_and_metrics_are_both_kinds(policy: Policy):
    ready = httpx.get(f"{policy.url}/v1/ready", timeout=30)
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert ready.headers["x-policy-version"].isdigit()
    text = httpx.get(f"{policy.url}/v1/metrics").text
    assert "vllm:generation_tokens_total" in text
    assert "online_rl_requests_total" in text


async def test_merged_versions_are_swapped_in_under_load_without_a_failure(policy: Policy):
    first = policy.workshop.make(1, scale=0.03)
    second = policy.workshop.make(2, parent=first, scale=0.03)
    client = policy.async_client()
    stopped = asyncio.Event()
    ids: list[tuple[str, str]] = []

    async def user(number: int) -> None:
        while not stopped.is_set():
            stream = await client.chat.completions.with_raw_response.create(
                model="policy", messages=QUESTION, max_tokens=24, stream=True, temperature=1.0
            )
            async for _ in stream.parse():
                pass
            ids.append((stream.headers["x-inference-id"], stream.headers["x-policy-version"]))

    async def answered_by(version: int) -> None:
        """Wait until it gave some whole answers, however slow the machine is."""
        while sum(header == str(version) for _, header in ids) < 6:
            for one in users:
                if one.done():
                    one.result()
            await asyncio.sleep(0.2)

    users = [asyncio.create_task(user(number)) for number in range(6)]
    await answered_by(0)
    for version, parent in ((first, 0), (second, 1)):
        policy.publish(version, parent)
        decided = await asyncio.to_thread(policy.settle, version.number)
        assert decided.state is VersionState.LIVE, decided.reason
        print(f"version {version.number}: {decided.metrics}")
        assert decided.metrics["mismatch_mean"] < 0.1
        await answered_by(version.number)
    stopped.set()
    await asyncio.gather(*users)  # raises what any request raised

    models = {0: policy.workshop.base_model, 1: first.model, 2: second.model}
    distances: dict[tuple[int, int], list[float]] = {}
    for response_id, header in ids:
        generation = policy.generation(response_id)
        assert generation.spans[0].version == int(header)
        if len(generation.spans) == 1:
            for other, model in models.items():
                distances.setdefault((int(header), other), []).append(distance(policy, model, generation))
    # What a span says is true: the captured log-probabilities are those of its version and of no other.
    means = {pair: statistics.fmean(found) for pair, found in distances.items()}
    print({pair: round(mean, 3) for pair, mean in means.items()})
    for own in models:
        assert means[own, own] < 0.08
        assert all(means[own, other] > 2 * means[own, own] for other in models.keys() - {own})


def test_trap_3_a_damaged_artifact_is_refused_and_the_old_version_stays(policy: Policy):
    broken = policy.workshop.make(3, scale=0.03)
    weights = broken.folder / "merged" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1000] ^= 0xFF
    weights.write_bytes(data)
    live = policy.registry.live()
    policy.publish(broken, 2)
    decided = policy.settle(3)
    assert decided.state is VersionState.REJECTED
    assert decided.reason is not None
    assert "hash" in decided.reason
    answer = policy.client().chat.completions.with_raw_response.create(model="policy", messages=QUESTION, max_tokens=2)
    assert live is not None
    assert answer.headers["x-policy-version"] == str(live.version)


def test_trap_4_weights_that_are_not_those_of_the_probes_are_refused_and_undone(policy: Policy):
    """The registry says one thing and the engine would serve another: the proof catches it."""
    claimed = policy.workshop.make(4, scale=0.05)
    shutil.copy(policy.workshop.base / "model.safetensors", claimed.folder / "merged" / "model.safetensors")
    policy.workshop.seal(claimed.folder, 4, 0)
    live = policy.registry.live()
    policy.publish(claimed, 0)
    decided = policy.settle(4)
    assert decided.state is VersionState.REJECTED
    assert live is not None
    answer = policy.client().chat.completions.with_raw_response.create(
        model="policy", messages=QUESTION, max_tokens=16, temperature=1.0
    )
    assert answer.headers["x-policy-version"] == str(live.version)
    generation = policy.generation(answer.parse().id)
    assert (
        distance(policy, policy.workshop.load(policy.workshop.folder / f"v{live.version:06d}" / "merged"), generation)
        < 0.1
    )


async def test_eight_streams(policy: Policy):
    """No bar, a figure: the machine may be busy."""
    client = policy.async_client()
    tokens = 0

    async def one() -> None:
        nonlocal tokens
        stream = await client.chat.completions.create(
            model="policy", messages=QUESTION, max_tokens=48, stream=True, extra_body={"min_tokens": 48}
        )
        async for _ in stream:
            tokens += 1

    begun = time.monotonic()
    await asyncio.gather(*(one() for _ in range(8)))
    print(f"ready {policy.ready_seconds:.1f} s; 8 streams: {tokens / (time.monotonic() - begun):.1f} tok/s")
