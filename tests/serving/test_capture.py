"""The capture against the fake engine: the conformance suite, and what must not happen."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from serving.capture import split_request_id
from serving.gate import Gate
from tests.serving import conformance
from tests.serving.conformance import PROMPT, REQUEST, Subject, context, proved_label
from tests.serving.fakes import FakeEngine, Kind, Params


@pytest.fixture
def subject() -> Subject:
    subject = conformance.make_subject(
        FakeEngine(),
        lambda tokens, stream, logprobs: Params(tokens, logprobs, Kind.DELTA if stream else Kind.FINAL_ONLY),
        lambda engine: engine.captured_generate,
    )
    subject.adapters = [Path("v1"), Path("v2")]
    subject.adapter_request = lambda name: SimpleNamespace(lora_name=name)
    return subject


async def test_a_stream_is_captured(subject: Subject):
    await conformance.check_a_stream_is_captured(subject)


async def test_a_whole_answer_is_captured(subject: Subject):
    await conformance.check_a_whole_answer_is_captured(subject)


async def test_spans_follow_the_label(subject: Subject):
    await conformance.check_spans_follow_the_label(subject)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_is_captured(subject: Subject, stream: bool):
    await conformance.check_an_abort_is_captured(subject, stream)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_ended_from_outside_is_captured(subject: Subject, stream: bool):
    await conformance.check_a_call_ended_from_outside_is_captured(subject, stream)


async def test_a_reader_that_stops_ends_the_request(subject: Subject):
    await conformance.check_a_reader_that_stops_ends_the_request(subject)


async def test_logprobs_at_positions(subject: Subject):
    await conformance.check_logprobs_at_positions(subject)


async def test_adapters(subject: Subject):
    await conformance.check_adapters(subject)


async def test_the_client_s_own_sampling_parameters_are_not_changed(subject: Subject):
    await proved_label(subject, 1)
    context()
    params = Params()
    async for _ in subject.generate(PROMPT, params, REQUEST):
        pass
    assert params.logprobs is None


async def test_outside_a_request_nothing_is_captured(subject: Subject):
    conformance.current_request.set(None)
    assert [output async for output in subject.generate(PROMPT, Params(), "probe-1")]
    assert subject.generations == []


async def test_trap_10_a_missing_logprob_is_refused_and_the_answer_goes_on(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
):
    await proved_label(subject, 1)
    request = context()
    original = FakeEngine._part

    def without(self, state, params, which, last):
        part = original(self, state, params, which, last)
        part.logprobs = None
        return part

    monkeypatch.setattr(FakeEngine, "_part", without)
    tokens: list[int] = []
    async for output in subject.generate(PROMPT, Params(), REQUEST):
        tokens += output.outputs[0].token_ids
        assert request.engine_answered  # else the whole response would be held back
    assert len(tokens) == 4
    assert subject.generations == []


async def test_tokens_of_weights_that_failed_their_proof_are_marked_and_wait_for_the_verdict(subject: Subject):
    label = subject.labels.new(9)
    await subject.engine.set_weight_label(label)
    context()
    async for _ in subject.generate(PROMPT, Params(), REQUEST):
        pass
    assert subject.generations == []
    subject.labels.decide(label, proved=False)
    (generation,) = subject.generations
    assert (generation.trainable, generation.untrainable_reason) == (False, "weights failed their proof")


async def test_beam_search_is_answered_and_not_captured(subject: Subject):
    await proved_label(subject, 1)
    context().beam_search = True
    assert [output async for output in subject.generate(PROMPT, Params(), REQUEST)]
    assert subject.generations == []


async def test_an_engine_failure_reaches_the_caller_and_is_noted(subject: Subject):
    request = context()

    async def broken(*_, **__):
        raise RuntimeError("engine")
        yield

    subject.engine.generate = broken
    subject.engine.intercept(lambda _: subject.engine.captured_generate, lambda *_: None)
    capture = conformance.make_subject(subject.engine, subject.params, lambda engine: engine.captured_generate)
    with pytest.raises(RuntimeError, match="engine"):
        [output async for output in capture.generate(PROMPT, Params(), REQUEST)]
    assert request.engine_failed
    assert request.engine_answered
    assert capture.gate.running == 0


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        (REQUEST, (REQUEST, 0, 0)),
        (f"cmpl-{conformance.INFERENCE}-3", (f"cmpl-{conformance.INFERENCE}", 3, 0)),
        (f"resp_{conformance.INFERENCE}_2", (f"resp_{conformance.INFERENCE}", 0, 2)),
    ],
)
def test_request_ids_tell_prompt_and_turn(request_id: str, expected: tuple[str, int, int]):
    assert split_request_id(request_id, conformance.INFERENCE) == expected


async def test_calls_of_one_request_that_wait_at_the_gate_together_count_once(subject: Subject):
    """Beam search makes several calls at a time; a count too many would make every later swap wait in vain."""
    await proved_label(subject, 1)
    request = context()

    async def call(number: int) -> None:
        async for _ in subject.generate(PROMPT, subject.params(2, True, None), f"{REQUEST}-{number}"):
            pass

    async with subject.gate.shut():
        calls = [asyncio.create_task(call(number)) for number in range(3)]
        while subject.gate.waiting < 3:
            await asyncio.sleep(0)
    await asyncio.gather(*calls)
    request.close()
    assert subject.gate.running == 0
    assert await subject.gate.drain(0.01)


async def test_the_gate_holds_new_requests_and_counts_running_ones():
    gate = Gate()
    await gate.enter()
    async with gate.shut():
        waiting = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
        assert not await gate.drain(0.01)
        gate.leave()
        assert await gate.drain(0.01)
        assert not waiting.done()
    await waiting
    assert gate.running == 1
