"""Our service (`online-rl up`) against plain ``vllm serve``: throughput, first token and gaps, at 1, 8 and 32 streams.

::

    .venv/bin/python -m benchmarks.serving --json v.json
    .venv/bin/python -m benchmarks.serving --quick

Both servers are loaded for the whole run, and one at a time is under load, in short blocks of the same work. A round is
a block of `plain`, one of `ours` and one of `control`, which is the plain server again; their order changes from round
to round so that all orders come equally often. Ratios and differences are taken within a round, so that what slows the
machine for longer cancels; what `control` finds against `plain` is the noise of the method.

Measured: `throughput_ratio`, ours / plain in tokens a second (1 is equal); `first_token_added_ms`, by how much later
the median first token comes; `gap_p99_ratio`, ours / plain in the 99th percentile of the time between two chunks of a
stream. First with the learner idle (nobody rates), then once more with every answer of ours rated, so that the
learner trains and swaps while ours is under load; it is stopped while the plain server is. The marks are for the idle
learner: ratio at least 0.95 or its interval overlaps the control's, at most 10 ms added at one stream, gaps at most 10%
above the control's ratio. Exits with 1 where one is missed, or a request failed.

Equal for both: model, dtype, lengths, memory and prefix caching of the key-value cache, eager mode, the cores that the
engine's threads bind to, one API process, and the requests, which are never repeated and ask for no log-probabilities.
Not equal: ours goes through Ray Serve's proxy (`--set serving.haproxy=true` for HAProxy), has the engine give the
sampled token's log-probability, signs ids, and spools, sends and stores what was sampled; its engine is one process
where vLLM's is two, which wait for each other spinning for a second (`--plain-sleeps` lets plain's sleep). What the
rest of our service does while nothing is asked of it burdens both, since both are loaded: `background_cores` says how
much that is.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.learner.__main__ import describe_machine
from benchmarks.serving.learning import Learner
from benchmarks.serving.load import Block, Questions, Rater, Workload, run_block
from benchmarks.serving.report import Learning, Row, as_json, find_misses, print_rows, summarise
from benchmarks.serving.servers import Ours, Plain, read_cpu, wait_quiet
from benchmarks.serving.statistics import Side, order_sides
from online_rl.cli.options import settings_from
from online_rl.demo.report import describe_commit, write_json
from online_rl.service.broker import free_port
from serving.app import engine_options

SPIN_SECONDS = 1.1
"""vLLM's processes spin for a second after their last message: the other server's must have stopped."""
REQUESTS, TOKENS = {1: 5, 8: 2, 32: 2}, {1: 10, 8: 20, 32: 12}
"""By number of streams: requests of each stream in a block, tokens of each answer; a few seconds a block."""
WARM_UP = Workload(streams=8, stream=True, requests=1, tokens=8)
BURST = Workload(streams=32, stream=False, requests=1, tokens=12)
"""Rated answers ahead of a row, so that the learner has something to train on from its first block."""
BACKLOG = 32
FIRST_SWAP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    workloads: tuple[Workload, ...]
    learning: tuple[Learning, ...]
    rounds: int
    seed: int


@dataclass(slots=True)
class Bench:
    """Both servers, running."""

    ours: Ours
    plain: Plain
    learner: Learner
    rater: Rater
    questions: Questions
    progress: Progress
    task: TaskID

    async def measure(self, workload: Workload, learning: Learning, plan: Plan) -> Row:
        """One row: all rounds of one workload."""
        rounds: list[dict[Side, Block]] = []
        idle = under_load = 0.0
        updates = swaps = 0
        if learning == "training":
            await self.occupy_learner()
        for order in order_sides(plan.rounds, plan.seed):
            blocks: dict[Side, Block] = {}
            for side in order:
                text = f"{learning}, {workload.name} streams: {side}"
                self.progress.update(self.task, description=text)
                if side == "ours":
                    before = self.learner.read_progress()
                    blocks[side] = await self.run_ours(workload, learning)
                    after = self.learner.read_progress()
                    updates += after.updates - before.updates
                    swaps += after.swaps - before.swaps
                else:
                    await self.learner.hold()
                    await asyncio.sleep(SPIN_SECONDS)
                    own = self.ours.processes()
                    used = read_cpu(own)
                    blocks[side] = await run_block(self.plain.url, workload, self.questions)
                    idle += read_cpu(own) - used
                    under_load += blocks[side].seconds
                self.progress.advance(self.task)
            rounds.append(blocks)
        return summarise(workload, learning, rounds, idle / under_load, updates, swaps)

    async def run_ours(self, workload: Workload, learning: Learning) -> Block:
        self.learner.release()
        await asyncio.sleep(SPIN_SECONDS)
        return await run_block(
            self.ours.url, workload, self.questions, self.rater.rate if learning == "training" else None
        )

    async def occupy_learner(self) -> None:
        """Have so many rated answers wait for the learner that it trains and swaps from the row's first block on."""
        self.progress.update(self.task, description="training: answers for the learner")
        self.learner.release()
        deadline = time.monotonic() + FIRST_SWAP_SECONDS
        while (now := self.learner.read_progress()).backlog < BACKLOG or now.swaps == 0:
            if time.monotonic() > deadline:
                raise SystemExit(f"the learner published nothing within {FIRST_SWAP_SECONDS:.0f} s")
            if now.backlog < BACKLOG:
                block = await run_block(self.ours.url, BURST, self.questions, self.rater.rate)
                if block.failures:
                    raise SystemExit(f"a request of the warm-up failed: {block.failures[0]}")
            await asyncio.sleep(1.0)


def make_plan(chosen: argparse.Namespace) -> Plan:
    workloads = tuple(
        Workload(streams, stream, REQUESTS.get(streams, 2), TOKENS.get(streams, 12))
        for streams in sorted(chosen.streams, reverse=True)
        for stream in (True, False)
    )
    return Plan(workloads, tuple(chosen.learner), chosen.rounds, chosen.seed)


@asynccontextmanager
async def run_servers(
    chosen: argparse.Namespace, folder: Path, progress: Progress, task: TaskID
) -> AsyncIterator[Bench]:
    """Start both, wait until both answer and nothing loads any more; stop both."""
    database = folder / "ours" / "online_rl.db"
    assignments = [*chosen.set, f"database.url=sqlite:///{database}"]
    settings = settings_from(folder / "ours", assignments)
    plain = Plain(folder, free_port(), engine_options(settings), sleeps=chosen.plain_sleeps)
    ours = Ours(folder / "ours", free_port(), assignments)
    learner: Learner | None = None
    try:
        plain.start()
        ours.start()
        say = lambda text: progress.update(task, description=text)  # noqa: E731
        await ours.wait_ready(say)
        say("plain vLLM")
        await plain.wait_ready()
        say("until nothing loads any more")
        await wait_quiet(lambda: [*ours.processes(), *plain.processes()])
        learner = Learner(database)
        bench = Bench(ours, plain, learner, Rater(ours.url, chosen.seed), Questions(chosen.seed), progress, task)
        for url in (ours.url, plain.url):
            await run_block(url, WARM_UP, bench.questions)
        yield bench
    finally:
        if learner is not None:
            learner.close()
        ours.stop()
        plain.stop()


async def run(chosen: argparse.Namespace, plan: Plan, folder: Path) -> list[Row]:
    columns = (TextColumn("{task.description:<60}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    with Progress(*columns) as progress:
        blocks = len(plan.workloads) * len(plan.learning) * plan.rounds * 3
        task = progress.add_task("starting both servers", total=blocks)
        async with run_servers(chosen, folder, progress, task) as bench:
            for learning in plan.learning:
                for workload in plan.workloads:
                    rows.append(await bench.measure(workload, learning, plan))
                    progress.console.print(describe(rows[-1]))
    return rows


def describe(row: Row) -> str:
    """One line while the run goes on."""
    kind = "streamed" if row.stream else "whole"
    return f"{row.learner}, {row.streams} {kind}: ratio {row.throughput_ratio}, control {row.control_ratio}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--learner", choices=("idle", "training"), nargs="+", default=["idle", "training"])
    parser.add_argument("--rounds", type=int, default=6, help="of each row; six have every order of the sides once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="a setting of the service")
    parser.add_argument("--plain-sleeps", action="store_true", help="plain vLLM's processes wait asleep, as ours do")
    parser.add_argument("--folder", type=Path, help="keep data and logs here; default: a temporary folder")
    parser.add_argument(
        "--quick", action="store_true", help="two rounds of 1 and 8 streams: tries the benchmark itself"
    )
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.streams, chosen.rounds = [1, 8], 2
    with tempfile.TemporaryDirectory(prefix="serving-") as scratch:
        folder = chosen.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = asyncio.run(run(chosen, make_plan(chosen), folder.absolute()))
    misses = find_misses(rows)
    print_rows(rows)
    if chosen.json:
        content = {
            "rows": as_json(rows),
            "misses": misses,
            "settings": chosen.set,
            "plain_sleeps": chosen.plain_sleeps,
            "commit": describe_commit(),
            "machine": describe_machine(),
        }
        write_json(chosen.json, content)
    for miss in misses:
        print(f"missed: {miss}")
    if misses and not chosen.quick:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
