"""Swaps against the fake engine: the order of the verbs, and that a bad version never answers."""

import asyncio

import pytest

from serving.gate import Gate
from serving.swap import AdapterSwap, InPlaceSwap, ReplicaUnusable, SwapFailed
from serving.weight_labels import Verdict, WeightLabels
from tests.serving.fakes import FakeEngine, fake_artifact


def in_place(engine: FakeEngine) -> tuple[InPlaceSwap, Gate, WeightLabels]:
    gate, labels = Gate(), WeightLabels()
    return InPlaceSwap(engine, gate, labels, drain_seconds=0.05, tolerance=0.15, model_name="policy"), gate, labels


async def test_trap_8_in_place_the_prefix_cache_is_reset_behind_the_new_weights():
    engine = FakeEngine()
    swap, gate, _ = in_place(engine)
    report = await swap.swap(fake_artifact(1, 0))
    assert engine.calls == ["pause", "reload v1", "label", "reset cache", "resume", "probe"]
    assert report.verdict is not None
    assert report.verdict.distinguishable
    assert (swap.version, gate.is_open) == (1, True)


async def test_new_requests_wait_for_the_proof_and_running_ones_are_drained_first():
    engine = FakeEngine()
    swap, gate, _ = in_place(engine)
    await gate.enter()
    seen: list[str] = []
    original = engine.logprobs_at

    async def probing(*args):
        seen.append(f"gate open: {gate.is_open}, waiting: {gate.waiting}")
        return await original(*args)

    engine.logprobs_at = probing
    swapping = asyncio.create_task(swap.swap(fake_artifact(1, 0)))
    await asyncio.sleep(0)
    newcomer = asyncio.create_task(gate.enter())
    await asyncio.sleep(0.01)
    assert engine.calls == []  # still draining
    gate.leave()
    await swapping
    await newcomer
    assert seen == ["gate open: False, waiting: 1"]


async def test_what_still_runs_after_the_cap_does_not_hold_the_swap_up():
    swap, gate, _ = in_place(FakeEngine())
    await gate.enter()
    assert not (await swap.swap(fake_artifact(1, 0))).drained


async def test_weights_that_fail_their_proof_are_undone_and_their_tokens_marked():
    engine = FakeEngine()
    swap, gate, labels = in_place(engine)
    await swap.swap(fake_artifact(0, None))
    await swap.swap(fake_artifact(1, 0))
    good = engine.label
    verdicts: list[Verdict] = []
    original = engine.set_weight_label

    async def watch(label: str) -> None:
        labels.when_decided([label], verdicts.append)
        await original(label)

    engine.set_weight_label = watch
    with pytest.raises(SwapFailed, match="version 2 was refused"):
        await swap.swap(fake_artifact(2, 1, claims="v9"))
    assert (engine.weights, swap.version, gate.is_open) == ("v1", 1, True)
    assert verdicts == [Verdict.TAINTED, Verdict.PROVED]
    assert engine.label != good  # the same version again, but another load


async def test_trap_4_weights_that_were_not_delivered_are_noticed():
    """The registry says version 2, the engine still serves version 1."""
    engine = FakeEngine()
    swap, _, _ = in_place(engine)
    await swap.swap(fake_artifact(1, 0))
    original = engine.reload_weights

    async def lazy(folder):
        if folder.name != "v2":
            await original(folder)

    engine.reload_weights = lazy
    with pytest.raises(SwapFailed):
        await swap.swap(fake_artifact(2, 1))
    assert swap.version == 1


async def test_a_reload_that_fails_halfway_samples_nothing_before_the_former_weights_are_back():
    engine = FakeEngine()
    engine.broken = {"v2"}
    swap, _, _ = in_place(engine)
    await swap.swap(fake_artifact(1, 0))
    engine.calls = []
    with pytest.raises(SwapFailed, match="cannot load v2"):
        await swap.swap(fake_artifact(2, 1))
    assert engine.calls.index("resume") > engine.calls.index("reload v1")
    assert engine.weights == "v1"


async def test_trap_6_when_the_former_weights_do_not_come_back_the_replica_is_unusable():
    engine = FakeEngine()
    swap, _, _ = in_place(engine)
    await swap.swap(fake_artifact(1, 0))
    engine.broken = {"v1", "v2"}
    with pytest.raises(ReplicaUnusable):
        await swap.swap(fake_artifact(2, 1))


def side_by_side(engine: FakeEngine, keep: int = 2) -> AdapterSwap:
    return AdapterSwap(engine, keep=keep, tolerance=0.15, model_name="policy")


async def test_trap_1_side_by_side_the_base_and_each_version_have_names_of_their_own():
    engine = FakeEngine()
    swap = side_by_side(engine)
    await swap.swap(fake_artifact(0, None))
    base = swap.hold(None)
    await swap.swap(fake_artifact(1, 0))
    live, pinned = swap.hold(None), swap.hold(1)
    assert base is not None
    assert live is not None
    assert pinned is not None
    assert (base[0], live[0], pinned[0]) == ("policy", "policy@v1", "policy@v1")
    assert swap.hold(7) is None


async def test_trap_5_an_adapter_is_not_unloaded_while_a_request_names_it():
    engine = FakeEngine()
    swap = side_by_side(engine, keep=1)
    await swap.swap(fake_artifact(1, 0))
    held = swap.hold(1)
    assert held is not None
    await swap.swap(fake_artifact(2, 1))
    assert set(engine.adapters) == {"policy@v1", "policy@v2"}
    assert swap.hold(1) is None  # no new request gets it
    held[1]()
    held[1]()
    await swap.unload_old()
    assert set(engine.adapters) == {"policy@v2"}


async def test_an_adapter_that_fails_its_proof_is_taken_out_and_the_default_stays():
    engine = FakeEngine()
    swap = side_by_side(engine)
    await swap.swap(fake_artifact(1, 0))
    with pytest.raises(SwapFailed):
        await swap.swap(fake_artifact(2, 1, claims="v9"))
    assert (swap.version, set(engine.adapters)) == (1, {"policy@v1"})


async def test_going_back_to_a_loaded_version_loads_nothing():
    engine = FakeEngine()
    swap = side_by_side(engine)
    for artifact in (fake_artifact(1, 0), fake_artifact(2, 1), fake_artifact(1, 0)):
        await swap.swap(artifact)
    assert engine.calls.count("add policy@v1") == 1
    assert swap.version == 1
