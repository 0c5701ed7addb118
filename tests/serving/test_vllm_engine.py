"""vLLM itself against the conformance suite that the fake passes, and adapters side by side."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from online_rl.config import Settings
from online_rl.schemas import Probe
from serving.artifact import Artifact, describe_base, verify_artifact
from serving.swap import AdapterSwap, SwapFailed
from serving.vllm_engine import EngineOptions, VllmEngine
from tests.serving import conformance
from tests.serving.artifacts import Version, Workshop
from tests.serving.conformance import Subject

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


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


def _exchanged(probe: Probe) -> Probe:
    """A probe that takes the parent for the version."""
    return probe.model_copy(update={"logprobs": probe.parent_logprobs, "parent_logprobs": probe.logprobs})
