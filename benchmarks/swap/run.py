"""One mode in this process: each version alone for a while (the control), then swap after swap, then the figures."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.swap.judge import Distances, compare_distances, find_distance, find_growth
from benchmarks.swap.replica import Replica, run_replica
from benchmarks.swap.streams import Seen, Streams, Times
from benchmarks.swap.versions import RANK, Made, Versions
from online_rl.durable_files import hash_file
from online_rl.merged_weights import WEIGHTS
from online_rl.schemas import ADAPTER
from serving.schemas import Generation
from serving.settings import SwapSettings
from serving.vllm_options import EngineOptions

Mode = Literal["lora", "merged"]

MAX_MODEL_LEN = 512
SAY_SECONDS = 10.0
FOLDERS_KEPT = 8
CONTROL_VERSIONS = 4


@dataclass(frozen=True, slots=True)
class Options:
    """`pause`: seconds between one swap and the next. `drain`: `swap.drain_seconds`, small so that answers span
    versions. `samples`: answers of each kind whose distance is taken (lora)."""

    mode: Mode
    model: Path
    swaps: int
    streams: int
    tokens: int
    favourites: int
    pause: float
    drain: float
    samples: int


Say = Callable[[str], None]


def run_mode(options: Options, say: Say) -> dict[str, Any]:
    """The row of one mode. Raises DeliveryFailed where a version is refused: nothing behind it could be measured."""
    with tempfile.TemporaryDirectory(prefix=f"swap-{options.mode}-") as scratch:
        folder = Path(scratch)
        say(f"making {options.favourites + 1} versions")
        # In a process of its own, so that what it takes is not counted as the service's memory.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            made, favourites = pool.submit(make_versions, options, folder / "made").result()
        versions = Versions(folder / "versions", options.model, hash_file(options.model / WEIGHTS), made)
        return asyncio.run(measure(options, versions, made, favourites, folder, say))


def make_versions(options: Options, folder: Path) -> tuple[list[Made], list[int]]:
    """The artifacts, and the tokens that they favour in turn."""
    from benchmarks.swap.favourites import STRENGTHS, Workshop

    workshop = Workshop(options.model, options.favourites, STRENGTHS[options.mode])
    return workshop.make(folder, merged=options.mode == "merged"), workshop.favourites


async def measure(
    options: Options, versions: Versions, made: Sequence[Made], favourites: list[int], folder: Path, say: Say
) -> dict[str, Any]:
    swap = SwapSettings(mode=options.mode, drain_seconds=options.drain, poll_seconds=0.05)
    engine_options = EngineOptions(
        model=options.model,
        model_name="policy",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=2 * options.streams,
        kv_cache_gib=0.5,
        cpu_threads="auto",
        adapters=swap.keep_versions + 1 if options.mode == "lora" else 0,
        adapter_rank=RANK,
    )
    say("starting the engine")
    async with run_replica(engine_options, swap, versions, folder) as replica:
        run = _Run(options, versions, favourites, replica, say)
        await run.deliver(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(run.streams.run())
            await run.rest_on_each_version()
            await run.swap_on()
            run.streams.stop()
        distances = None
        if options.mode == "lora":
            say("running the sampled answers again, undisturbed")
            distances = compare_distances(
                await find_distances(replica, run.swapped.disturbed, made),
                await find_distances(replica, run.control.undisturbed, made),
            )
        return run.summarise(distances)


class _Run:
    """Deliveries, and what was seen meanwhile."""

    def __init__(self, options: Options, versions: Versions, favourites: list[int], replica: Replica, say: Say) -> None:
        self._options = options
        self._versions = versions
        self._favourites = favourites
        self._replica = replica
        self._say = say
        self.streams = Streams(
            replica, favourites, count=options.streams, tokens=options.tokens, samples=options.samples
        )
        self.control, self.swapped = Seen(), Seen()
        self._seconds: list[float] = []
        self._wall: list[float] = []
        self._stages: dict[str, list[float]] = {}
        self._memory: list[float] = []
        self._version = 0

    async def deliver(self, version: int) -> dict[str, Any]:
        await asyncio.to_thread(self._versions.publish, version)
        with self.streams.swapping():
            proof = await self._replica.line.deliver(version)
        self._version = version
        await asyncio.to_thread(self._versions.remove, version - FOLDERS_KEPT)
        return proof

    async def rest_on_each_version(self) -> None:
        """The control: some versions answer one after the other, each until so many answers met no swap as there are
        streams."""
        self.streams.phase = self.control
        for version in range(1, CONTROL_VERSIONS + 1):
            if version > 1:
                await self.deliver(version)
            wanted = len(self.control.calm.first_tokens) + self._options.streams
            while len(self.control.calm.first_tokens) < wanted:
                await asyncio.sleep(0.1)
        self._say(f"control: {self.control.requests} requests, {self.control.failed} failed")

    async def swap_on(self) -> None:
        self.streams.phase = self.swapped
        said = time.monotonic()
        for number in range(1, self._options.swaps + 1):
            self._memory.append(self._replica.read_memory())
            began = time.monotonic()
            proof = await self.deliver(self._version + 1)
            self._wall.append(time.monotonic() - began)
            self._seconds.append(proof["seconds"])
            for stage, seconds in proof["stages"].items():
                self._stages.setdefault(stage, []).append(seconds)
            await asyncio.sleep(self._options.pause)
            if time.monotonic() - said > SAY_SECONDS or number == self._options.swaps:
                said = time.monotonic()
                self._say(self._describe(number))

    def _describe(self, number: int) -> str:
        seen = self.swapped
        return (
            f"{number} of {self._options.swaps} swaps, {seen.requests} requests, {seen.failed} failed, "
            f"{seen.hung} hung, {seen.tokens.untrue} of {seen.tokens.total} tokens untrue, "
            f"{self._memory[-1] / 2**20:.0f} MiB"
        )

    def summarise(self, distances: Distances | None) -> dict[str, Any]:
        seen, control = self.swapped, self.control
        milliseconds = 1000 * np.array(self._seconds)
        growth = find_growth(self._memory)
        return {
            "mode": self._options.mode,
            "swaps": len(self._seconds),
            "failed": seen.failed + control.failed,
            "hung": seen.hung + control.hung,
            "wrong_version": seen.tokens.untrue + control.tokens.untrue + seen.wrong_header + control.wrong_header,
            "uncaptured": seen.uncaptured + control.uncaptured,
            "rss_growth": None if growth is None else round(growth, 4),
            "rss_mib": round(self._memory[-1] / 2**20),
            "swap_ms_p50": round(float(np.percentile(milliseconds, 50)), 1),
            "swap_ms_p99": round(float(np.percentile(milliseconds, 99)), 1),
            "delivery_ms_p50": round(1000 * float(np.median(self._wall)), 1),
            "stages_ms_p50": {name: round(1000 * float(np.median(each)), 1) for name, each in self._stages.items()},
            **describe_times("", seen.times),
            **describe_times("control_", control.calm),
            "requests": seen.requests,
            "spanning": seen.spanning,
            "tokens": asdict(seen.tokens),
            "control_tokens": asdict(control.tokens),
            "distances": None if distances is None else asdict(distances) | {"further": distances.further},
            "reasons": (seen.reasons + control.reasons)[:10],
            "options": asdict(self._options) | {"model": self._options.model.name},
        }


def describe_times(prefix: str, times: Times) -> dict[str, float]:
    return {
        f"{prefix}longest_gap_ms": round(1000 * max(times.gaps), 1),
        f"{prefix}gap_p99_ms": round(1000 * float(np.percentile(times.gaps, 99)), 1),
        f"{prefix}longest_first_token_ms": round(1000 * max(times.first_tokens), 1),
    }


async def find_distances(replica: Replica, generations: Sequence[Generation], made: Sequence[Made]) -> list[float]:
    """Of each captured answer to the engine's own log-probabilities of its tokens, while nothing else runs."""
    found: list[float] = []
    count = len(made) - 1
    for index in range(count):
        own = [each for each in generations if (each.spans[0].version - 1) % count == index]
        if not own:
            continue
        name = f"policy@v{1_000_000 + len(found)}-{index}"
        await replica.engine.add_adapter(name, made[index].folder / ADAPTER)
        rows = await replica.engine.logprobs_at(
            [
                (
                    [*each.prompt_token_ids, *each.token_ids],
                    range(len(each.prompt_token_ids), len(each.prompt_token_ids) + len(each.token_ids)),
                )
                for each in own
            ],
            name,
        )
        await replica.engine.remove_adapter(name)
        found += [find_distance(each.behavior_logprobs, row) for each, row in zip(own, rows, strict=True)]
    return found
