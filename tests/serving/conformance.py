"""What capture and swap rely on of an engine; run against the fake one and against vLLM."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving.capture import Capture
from serving.context import RequestContext, current_request
from serving.gate import Gate
from serving.schemas import Generation
from serving.weight_labels import WeightLabels

INFERENCE = "a" * 32
REQUEST = f"chatcmpl-{INFERENCE}"
PROMPT = {"prompt_token_ids": [1, 2, 3, 4]}


@dataclass
class Subject:
    """An engine with a capture in front of it."""

    engine: Any
    params: Callable[..., Any]
    """(max_tokens, stream, logprobs) → sampling parameters."""
    generate: Callable[..., Any]
    """The captured `generate`."""
    labels: WeightLabels
    gate: Gate
    generations: list[Generation]
    adapter_request: Callable[[str], Any] = lambda _: None
    adapters: list[Path] = field(default_factory=list)


def make_subject(engine: Any, params: Callable[..., Any], current_generate: Callable[[Any], Any]) -> Subject:
    gate, labels, generations = Gate(), WeightLabels(), []

    def wrap(generate: Callable[..., Any]) -> Callable[..., Any]:
        holder.append(
            Capture(generate, generations.append, gate=gate, labels=labels, versions=engine, model_name="policy")
        )
        return holder[0].generate

    holder: list[Capture] = []
    engine.intercept(wrap, lambda request_id, sampled: holder[0].on_abort(request_id, sampled))
    return Subject(
        engine, params, lambda *args, **kwargs: current_generate(engine)(*args, **kwargs), labels, gate, generations
    )


async def proved_label(subject: Subject, version: int) -> str:
    label = subject.labels.new(version)
    await subject.engine.set_weight_label(label)
    subject.labels.decide(label, proved=True)
    return label


def context() -> RequestContext:
    made = RequestContext(inference_id=INFERENCE, created_at=0.0)
    current_request.set(made)
    return made


async def check_a_stream_is_captured(subject: Subject) -> None:
    await proved_label(subject, 3)
    request = context()
    seen: list[int] = []
    assert not request.engine_answered
    async for output in subject.generate(PROMPT, subject.params(6, True, None), REQUEST):
        assert all(part.logprobs is None and part.cumulative_logprob is None for part in output.outputs)
        seen += output.outputs[0].token_ids
        assert request.policy_version == 3
        assert request.engine_answered
    (generation,) = subject.generations
    assert list(generation.token_ids) == seen
    assert list(generation.prompt_token_ids) == PROMPT["prompt_token_ids"]
    assert len(generation.behavior_logprobs) == 6
    assert all(value < 0 for value in generation.behavior_logprobs)
    assert [(span.start, span.end, span.version) for span in generation.spans] == [(0, 6, 3)]
    assert request.response_id == REQUEST
    assert subject.gate.running == 0


async def check_a_whole_answer_is_captured(subject: Subject) -> None:
    await proved_label(subject, 4)
    request = context()
    outputs = [output async for output in subject.generate(PROMPT, subject.params(5, False, 0), REQUEST)]
    assert len(outputs) == 1
    asked = outputs[0].outputs[0]
    assert asked.logprobs is not None
    (generation,) = subject.generations
    assert list(generation.token_ids) == list(asked.token_ids)
    pairs = zip(asked.token_ids, asked.logprobs, strict=True)
    assert [by_token[token].logprob for token, by_token in pairs] == list(generation.behavior_logprobs)
    assert request.policy_version == 4
    assert generation.finish_reason == "length"


async def check_spans_follow_the_label(subject: Subject) -> None:
    await proved_label(subject, 5)
    context()
    before = 0
    async for output in subject.generate(PROMPT, subject.params(20, True, None), REQUEST):
        before += len(output.outputs[0].token_ids)
        if before >= 5:
            break_at = before
            before = -1000
            await subject.engine.pause()
            await proved_label(subject, 6)
            await subject.engine.resume()
    (generation,) = subject.generations
    assert [span.version for span in generation.spans] == [5, 6]
    assert generation.spans[0].end >= break_at
    assert generation.spans[1].end == 20


async def check_an_abort_is_captured(subject: Subject, stream: bool) -> None:
    await proved_label(subject, 7)
    context()
    tokens = 0

    async def consume() -> None:
        nonlocal tokens
        async for output in subject.generate(PROMPT, subject.params(5000 if stream else 400, stream, None), REQUEST):
            tokens += len(output.outputs[0].token_ids)

    task = asyncio.create_task(consume())
    while subject.engine.label_of_first_token(REQUEST) is None:
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    (generation,) = subject.generations
    assert generation.finish_reason == "abort"
    assert len(generation.token_ids) >= max(tokens, 1)
    assert [span.version for span in generation.spans] == [7]
    assert subject.gate.running == 0


async def check_a_call_ended_from_outside_is_captured(subject: Subject, stream: bool) -> None:
    await proved_label(subject, 7)
    request = context()

    async def consume() -> None:
        async for _ in subject.generate(PROMPT, subject.params(5000 if stream else 400, stream, None), REQUEST):
            pass

    task = asyncio.create_task(consume())
    while subject.engine.label_of_first_token(REQUEST) is None:
        await asyncio.sleep(0)
    assert request.generating == {REQUEST}
    await subject.engine.abort(request.generating)
    await task
    await subject.engine.abort([REQUEST])  # it has ended: nothing happens
    (generation,) = subject.generations
    assert generation.finish_reason == "abort"
    assert 0 < len(generation.token_ids) < 400
    assert [(span.start, span.end) for span in generation.spans] == [(0, len(generation.token_ids))]
    assert subject.gate.running == 0
    assert request.generating == set()


async def check_a_reader_that_stops_ends_the_request(subject: Subject) -> None:
    await proved_label(subject, 8)
    context()
    stream = subject.generate(PROMPT, subject.params(5000, True, None), REQUEST)
    await anext(stream)
    await stream.aclose()
    (generation,) = subject.generations
    assert generation.finish_reason == "abort"
    assert generation.token_ids
    assert subject.engine.label_of_first_token(REQUEST) is None
    assert subject.gate.running == 0


async def check_logprobs_at_positions(subject: Subject) -> None:
    rows = await subject.engine.logprobs_at([([1, 2, 3], [1, 2]), ([4, 5, 6, 7], [3, 1, 2])])
    assert [len(row) for row in rows] == [2, 3]
    assert subject.generations == []


async def check_adapters(subject: Subject) -> None:
    first, second = subject.adapters
    query = [([1, 2, 3, 4, 5, 6, 7, 8], [3, 5, 7])]
    plain = await subject.engine.logprobs_at(query)
    await subject.engine.add_adapter("policy@v1", first)
    await subject.engine.add_adapter("policy@v2", second)
    rows = [await subject.engine.logprobs_at(query, name) for name in ("policy@v1", "policy@v2")]
    assert rows[0] != plain
    assert rows[1] != plain
    assert rows[0] != rows[1]
    request = context()
    params = subject.params(3, True, None)
    async for _ in subject.generate(PROMPT, params, REQUEST, lora_request=subject.adapter_request("policy@v2")):
        assert request.policy_version == 2
    (generation,) = subject.generations
    assert generation.adapter == "policy@v2"
    assert [span.version for span in generation.spans] == [2]
    await subject.engine.remove_adapter("policy@v1")
    await subject.engine.remove_adapter("policy@v2")
    assert await subject.engine.logprobs_at(query) == plain
