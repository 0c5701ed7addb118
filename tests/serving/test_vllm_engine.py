"""vLLM itself against the conformance suite that the fake passes, and adapters side by side."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import pytest_asyncio
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from online_rl.config import Settings
from online_rl.schemas import Probe
from serving.artifact import Artifact, describe_base, verify_artifact
from serving.swap import AdapterSwap, SwapFailed
from serving.vllm_engine import VllmEngine
from serving.vllm_options import EngineOptions
from tests.serving import conformance
from tests.serving.artifacts import Version, Workshop
from tests.serving.conformance import PROMPT, Subject

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

GREEDY = SamplingParams(max_tokens=120, min_tokens=120, temperature=0.0, output_kind=RequestOutputKind.FINAL_ONLY)
LONG = {"prompt_token_ids": [token % 1000 + 20 for token in range(300)]}
"""Of several blocks of the prefix cache."""


def make_params(max_tokens: int, stream: bool, logprobs: int | None) -> SamplingParams:
    return SamplingParams(
        max_tokens=min(max_tokens, 400),
        min_tokens=min(max_tokens, 400),
        logprobs=logprobs,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
    )


@pytest.fixture(scope="module")
def versions(workshop: Workshop) -> list[Version]:
    return [workshop.make(number, scale=0.05) for number in (11, 12, 13)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[VllmEngine]:
    options = EngineOptions(
        model=Path(Settings().model_path),
        model_name="policy",
        max_model_len=512,
        max_num_seqs=8,
        kv_cache_gib=0.5,
        cpu_threads="auto",
        adapters=3,
        adapter_rank=8,
    )
    engine = await VllmEngine.start(options)
    yield engine
    engine.stop()


@pytest.fixture
def subject(engine: VllmEngine, versions: list[Version]) -> Subject:
    made = conformance.make_subject(engine, make_params, lambda engine: engine._engine.generate)
    made.adapters = [version.folder / "adapter" for version in versions[:2]]
    made.adapter_request = lambda name: engine._adapters[name]
    return made


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


async def test_a_short_system_prompt_is_shared_between_requests(engine: VllmEngine):
    system = [token % 700 + 40 for token in range(40)]
    params = SamplingParams(max_tokens=1, output_kind=RequestOutputKind.FINAL_ONLY)
    cached = [
        (await _ask(engine, params, None, {"prompt_token_ids": [*system, *[question] * 20]})).num_cached_tokens
        for question in (21, 22)
    ]
    assert cached == [0, 32]


async def test_on_a_cpu_one_process_schedules_and_computes(engine: VllmEngine):
    # Ours, not that of a replica which another test started.
    (core,) = [child for child in psutil.Process().children() if "VLLM::" in child.name()]
    assert core.name() == "VLLM::EngineCore"
    assert not [child for child in core.children(recursive=True) if "VLLM::" in child.name()]
    # Its first thread is bound to a core, as a worker's of its own would be; ours is not.
    assert len(core.cpu_affinity() or ()) == 1
    assert not {"GOMP_CPU_AFFINITY", "OMP_PLACES", "KMP_AFFINITY"} & os.environ.keys()


async def test_adapters(subject: Subject):
    await conformance.check_adapters(subject)


async def test_versions_side_by_side_are_proved_and_a_false_one_is_taken_out(
    engine: VllmEngine, workshop: Workshop, versions: list[Version]
):
    base = describe_base(workshop.base)
    swap = AdapterSwap(engine, keep=2, tolerance=0.15, model_name="policy")
    await swap.swap(Artifact(0, None, workshop.base, None, ()))
    first, second, third = (
        verify_artifact(version.folder, version.number, base, needs="adapter") for version in versions
    )
    for artifact in (first, second):
        report = await swap.swap(artifact)
        print(f"adapter of version {artifact.version}: {report}")
        assert report.verdict is not None
        assert report.verdict.accepted
        assert report.verdict.distinguishable
    false = Artifact(third.version, 0, None, third.adapter, tuple(_exchanged(probe) for probe in third.probes))
    with pytest.raises(SwapFailed, match=r"closer to the parent|tolerance"):
        await swap.swap(false)
    assert swap.version == second.version
    held = swap.hold(first.version)
    assert held is not None
    await swap.swap(third)
    assert [artifact.version for artifact in swap.servable()] == [0, second.version, third.version]
    held[1]()
    await swap.unload_old()
    assert len(engine._adapters) == 2


async def test_an_adapter_loaded_before_there_are_routes_is_routable(engine: VllmEngine, versions: list[Version]):
    """A replica that starts again loads the live adapter first; its requests must not be answered 404."""
    await engine.add_adapter("policy@v99", versions[0].folder / "adapter")
    await engine.build_app()
    assert "policy@v99" in engine.routable()
    await engine.remove_adapter("policy@v99")
    assert "policy@v99" not in engine.routable()


async def test_trap_2_loading_adapters_leaves_the_answers_in_flight_as_they_are(
    engine: VllmEngine, versions: list[Version]
):
    """A greedy answer under one adapter, once undisturbed and once while others are loaded and taken out."""
    await engine.add_adapter("policy@v1", versions[0].folder / "adapter")
    try:
        undisturbed, _ = await _answer(engine, GREEDY, "policy@v1")
        answering = asyncio.create_task(_answer(engine, GREEDY, "policy@v1"))
        changes = 0
        while not answering.done():
            await engine.add_adapter("policy@v2", versions[1].folder / "adapter")
            await engine.remove_adapter("policy@v2")
            changes += 1
        assert changes > 1
        assert (await answering)[0] == undisturbed
    finally:
        await engine.remove_adapter("policy@v1")


async def test_trap_16_truncated_sampling_leaves_the_captured_logprobs_those_of_the_raw_model(engine: VllmEngine):
    params = SamplingParams(
        max_tokens=24, min_tokens=24, temperature=0.6, top_p=0.5, top_k=5, seed=1, logprobs=0,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    tokens, captured = await _answer(engine, params)
    prompt = PROMPT["prompt_token_ids"]
    positions = [len(prompt) + place for place in range(len(tokens))]
    (raw,) = await engine.logprobs_at([([*prompt, *tokens], positions)])
    assert captured == pytest.approx(raw, abs=0.15)
    # Of the truncated distribution they would be nearer to 0, by what it left out.
    assert sum(captured) < -1.0


async def test_trap_18_a_new_artifact_under_an_old_name_is_the_one_that_answers(
    engine: VllmEngine, versions: list[Version]
):
    """And trap 1: nothing of the old one comes out of the prefix cache, of which the prompt fills a block."""
    first, second = (version.folder / "adapter" for version in versions[:2])
    params = SamplingParams(max_tokens=24, min_tokens=24, temperature=0.0, output_kind=RequestOutputKind.FINAL_ONLY)
    answers: list[list[int]] = []
    for name, folder in [("policy@v1", first), ("policy@v1", second), ("policy@v2", second)]:
        await engine.add_adapter(name, folder)
        answers += [(await _answer(engine, params, name, LONG))[0] for _ in range(2)]
        assert (await _ask(engine, params, name, LONG)).num_cached_tokens == 288
        await engine.remove_adapter(name)
    # Each asked twice, so that the second may come out of the cache.
    assert answers[0::2] == answers[1::2]
    answers = answers[1::2]
    assert answers[1] == answers[2]
    assert answers[0] != answers[1]


async def _answer(
    engine: VllmEngine, params: SamplingParams, adapter: str | None = None, prompt: dict[str, list[int]] = PROMPT
) -> tuple[list[int], list[float]]:
    """The tokens of one answer, and their log-probabilities as they are captured."""
    part = (await _ask(engine, params, adapter, prompt)).outputs[0]
    rows = part.logprobs or []
    return list(part.token_ids), [row[token].logprob for row, token in zip(rows, part.token_ids, strict=False)]


async def _ask(engine: VllmEngine, params: SamplingParams, adapter: str | None, prompt: dict[str, list[int]]) -> Any:
    lora = None if adapter is None else engine._adapters[adapter]
    answers = [answer async for answer in engine._engine.generate(prompt, params, uuid4().hex, lora_request=lora)]
    return answers[-1]


def _exchanged(probe: Probe) -> Probe:
    """A probe that takes the parent for the version."""
    return probe.model_copy(update={"logprobs": probe.parent_logprobs, "parent_logprobs": probe.logprobs})
