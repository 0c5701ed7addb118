"""Three ways to keep generation slots and one trainer busy, on any asyncio clock.

::

    synchronous   generate a batch ── wait for its last answer ── train ── generate …
    group         each crew of slots answers one question and waits for its last answer; the trainer runs beside
    single        each slot goes on at once; the trainer takes whatever batch is complete

The two asynchronous ones stop generating while `QUEUED` batches wait, so that staleness stays bounded.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Schedule = Literal["single", "group", "synchronous"]
QUEUED = 2
"""Batches that may wait for the trainer."""


@dataclass(slots=True)
class Usage:
    """What a schedule made of its time."""

    updates: int = 0
    generating: float = 0.0
    """Seconds of all slots together."""
    training: float = 0.0
    staleness: list[int] = field(default_factory=list)
    """Of every trajectory trained on: updates between its start and its training."""


@dataclass(frozen=True, slots=True)
class Plant:
    """What there is to schedule."""

    slots: int
    batch: int
    group: int
    draw_duration: Callable[[], float]
    """Seconds that the next answer takes."""
    update: Callable[[], Awaitable[None]]
    """One policy update."""


async def run_schedule(schedule: Schedule, plant: Plant, seconds: float) -> Usage:
    """Run for `seconds` of the loop's clock. Raises ValueError where the groups do not fill the slots and the batch."""
    if plant.slots % plant.group or plant.batch % plant.group:
        raise ValueError(f"group {plant.group} must divide slots {plant.slots} and batch {plant.batch}")
    usage = Usage()
    tasks = _start(schedule, plant, usage)
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return usage


def _start(schedule: Schedule, plant: Plant, usage: Usage) -> list[asyncio.Task[None]]:
    if schedule == "synchronous":
        return [asyncio.create_task(_alternate(plant, usage))]
    size = plant.group if schedule == "group" else 1
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=QUEUED * plant.batch)
    crews = [asyncio.create_task(_produce(plant, usage, queue, size)) for _ in range(plant.slots // size)]
    return [*crews, asyncio.create_task(_consume(plant, usage, queue))]


async def _generate(plant: Plant, usage: Usage) -> int:
    """One answer; returns the number of updates made before it began."""
    began, clock = usage.updates, asyncio.get_running_loop()
    start = clock.time()
    try:
        await asyncio.sleep(plant.draw_duration())
    finally:
        usage.generating += clock.time() - start
    return began


async def _train(plant: Plant, usage: Usage, begun: list[int]) -> None:
    start = asyncio.get_running_loop().time()
    try:
        await plant.update()
    finally:
        usage.training += asyncio.get_running_loop().time() - start
    usage.staleness += [usage.updates - began for began in begun]
    usage.updates += 1


async def _alternate(plant: Plant, usage: Usage) -> None:
    slots = asyncio.Semaphore(plant.slots)

    async def take_slot() -> int:
        async with slots:
            return await _generate(plant, usage)

    while True:
        await _train(plant, usage, await asyncio.gather(*(take_slot() for _ in range(plant.batch))))


async def _produce(plant: Plant, usage: Usage, queue: asyncio.Queue[int], size: int) -> None:
    while True:
        for began in await asyncio.gather(*(_generate(plant, usage) for _ in range(size))):
            await queue.put(began)


async def _consume(plant: Plant, usage: Usage, queue: asyncio.Queue[int]) -> None:
    while True:
        await _train(plant, usage, [await queue.get() for _ in range(plant.batch)])


class _JumpingSelector(selectors.DefaultSelector):
    """Waits no time at all: where nothing is ready, its clock jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `sleep` takes no time: the same schedule in simulated seconds."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now
