"""The schedules in simulated time, with durations that can be followed by hand."""

import asyncio
import time
from collections.abc import Callable
from itertools import cycle

import pytest

from benchmarks.papers.schedules import QUEUED, Plant, Schedule, Usage, VirtualLoop, run_schedule


def run(schedule: Schedule, draw: Callable[[], float], update: float, seconds: float, **sizes: int) -> Usage:
    shape = {"slots": 2, "batch": 2, "group": 2} | sizes
    plant = Plant(**shape, draw_duration=draw, update=lambda: asyncio.sleep(update))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run_schedule(schedule, plant, seconds))


def alternate(*durations: float) -> Callable[[], float]:
    values = cycle(durations)
    return lambda: next(values)


def test_a_synchronous_batch_waits_for_its_longest_answer_and_for_training() -> None:
    # Each round: answers of 1 s and 3 s side by side, then 1 s of training: 4 s.
    usage = run("synchronous", alternate(1.0, 3.0), update=1.0, seconds=40.5)
    assert usage.updates == 10
    assert usage.generating == pytest.approx(10 * 4.0 + 2 * 0.5)
    assert usage.training == pytest.approx(10.0)
    assert set(usage.staleness) == {0}


def test_a_group_waits_for_its_longest_answer_but_not_for_training() -> None:
    # A group every 3 s, of which 4 of the 6 slot seconds are used; training runs beside.
    usage = run("group", alternate(1.0, 3.0), update=1.0, seconds=31.5)
    assert usage.updates == 10
    assert usage.generating == pytest.approx(10 * 4.0 + 1.0 + 1.5)


def test_single_rollouts_leave_no_slot_idle() -> None:
    usage = run("single", alternate(1.0, 3.0), update=0.5, seconds=40.25)
    assert usage.generating == pytest.approx(2 * 40.25)
    # Two answers every 2 s, and half a second later their update.
    assert run("single", lambda: 2.0, update=0.5, seconds=40.75).updates == 20


def test_a_slow_trainer_bounds_the_staleness() -> None:
    usage = run("single", lambda: 0.1, update=10.0, seconds=500.0)
    assert usage.updates == 49
    # At most the full queue, the batch in training and the answers that wait to get in lie between start and use.
    assert max(usage.staleness) <= QUEUED + 2
    assert usage.generating < 0.1 * 500


def test_simulated_time_passes_at_once() -> None:
    began = time.perf_counter()
    run("single", lambda: 1.0, update=1.0, seconds=1000.0)
    assert time.perf_counter() - began < 5.0


def test_a_failing_update_is_not_swallowed() -> None:
    async def fail() -> None:
        raise RuntimeError("update failed")

    plant = Plant(slots=2, batch=2, group=2, draw_duration=lambda: 1.0, update=fail)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(RuntimeError, match="update failed"):
        runner.run(run_schedule("single", plant, 10.0))


def test_groups_must_fill_the_slots() -> None:
    with pytest.raises(ValueError, match="group 2 must divide slots 3"):
        run("group", lambda: 1.0, update=1.0, seconds=1.0, slots=3)
