"""Why asynchrony: updates an hour and idle slots under long-tailed lengths, in simulated and in real time.

In real time the updates are the service's own trainer on recorded trajectories; answers are slept through, since an
engine elsewhere would compute them. In simulated time both are waits, and thousands of updates pass in a second.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Literal

from benchmarks.papers.experiment import Experiment, Options, by_seed
from benchmarks.papers.figures import draw_bars
from benchmarks.papers.lags import Lag
from benchmarks.papers.policy import make_trainer, prepare_base
from benchmarks.papers.runs import Job, Row
from benchmarks.papers.schedules import Plant, Schedule, Usage, VirtualLoop, run_schedule
from benchmarks.papers.simulator import Simulator
from benchmarks.papers.statistics import Claim, judge_claim
from benchmarks.papers.tasks import LOOKUP
from benchmarks.papers.training import BATCH, GROUP, Setup, make_settings
from feedback.schemas import Trajectory
from online_rl.trainer import Trainer

SCHEDULES: tuple[Schedule, ...] = ("single", "group", "synchronous")
SLOTS = 16
REAL_ANSWER = 0.25
"""Mean seconds of an answer there: with the trainer's own update of some 0.04 s much as in simulated time."""
BATCHES = 16
"""Recorded batches that the real trainer goes through in turn."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement."""

    schedule: Schedule
    clock: Literal["simulated", "real"]
    seconds: float
    answer_seconds: float = 1.0
    """Mean of one answer."""
    update_seconds: float = 0.25
    """Of one update in simulated time; in real time it takes what it takes."""
    sigma: float = 1.0
    """Of the logarithm of an answer's duration: at 1.0 one answer in 100 takes more than six times the mean."""

    @property
    def task(self) -> str | None:
        """The task whose trajectories are trained on; None where the updates are waits."""
        return LOOKUP.name if self.clock == "real" else None


def plan(options: Options) -> list[Job]:
    if options.task or options.lag or options.updates or options.settings:
        raise ValueError(
            "throughput knows no --task, --lag, --updates or --set: what it trains is not what it measures"
        )
    simulated, real = (600.0, 15.0) if options.quick else (3600.0, 60.0)
    plans = {f"{schedule}/simulated": Plan(schedule, "simulated", simulated) for schedule in SCHEDULES} | {
        f"{schedule}/real": Plan(schedule, "real", real, answer_seconds=REAL_ANSWER) for schedule in SCHEDULES
    }
    chosen = options.objectives or tuple(plans)
    unknown = [name for name in chosen if name not in plans]
    if unknown:
        raise ValueError(f"--objectives: no variant {', '.join(unknown)}; there are {', '.join(plans)}")
    return [Job(name, seed, plans[name], 1) for seed in range(options.seeds) for name in chosen]


def work(job: Job, tick: Callable[[], None]) -> Row:
    usage = measure(job.setup, job.seed)
    tick()
    total = SLOTS * job.setup.seconds
    return {
        "updates_per_hour": usage.updates / job.setup.seconds * 3600,
        "idle_share": 1.0 - usage.generating / total,
        "trainer_idle_share": 1.0 - usage.training / job.setup.seconds,
        "staleness": fmean(usage.staleness) if usage.staleness else None,
        "updates": usage.updates,
    }


def measure(plan: Plan, seed: int) -> Usage:
    """Run one schedule on its clock."""
    rng = Random(seed)
    # The mean of a log-normal is exp(μ + σ²/2).
    scale = plan.answer_seconds

    def draw_duration() -> float:
        return scale * rng.lognormvariate(-(plan.sigma**2) / 2, plan.sigma)

    if plan.clock == "simulated":
        update = lambda: asyncio.sleep(plan.update_seconds)  # noqa: E731
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(run_schedule(plan.schedule, make_plant(draw_duration, update), plan.seconds))
    trainer, batches = record(seed)

    async def train() -> None:
        nonlocal batches
        await asyncio.to_thread(trainer.update, batches[0])
        batches = [*batches[1:], batches[0]]

    return asyncio.run(run_schedule(plan.schedule, make_plant(draw_duration, train), plan.seconds))


def make_plant(draw_duration: Callable[[], float], update: Callable[[], object]) -> Plant:
    return Plant(SLOTS, BATCH, GROUP, draw_duration, update)  # pyright: ignore[reportArgumentType]


def record(seed: int) -> tuple[Trainer, list[list[Trajectory]]]:
    """A trainer, and batches of the warm policy for it; one update is made so that the first is not slow."""
    trainer = make_trainer(prepare_base(LOOKUP), make_settings(Setup("sao"), seed))
    simulator = Simulator(trainer.policy, LOOKUP.max_length, seed)
    batches = [simulator.collect(LOOKUP, BATCH, Lag("constant", 0)) for _ in range(BATCHES)]
    trainer.update(batches[0])
    return trainer, batches


def judge(rows: Sequence[Row]) -> list[Claim]:
    claims: list[Claim] = []
    for clock in ("simulated", "real"):
        for other in ("synchronous", "group"):
            fast = by_seed(rows, f"single/{clock}", "updates_per_hour")
            slow = by_seed(rows, f"{other}/{clock}", "updates_per_hour")
            ratios = [fast[seed] / slow[seed] for seed in sorted(fast.keys() & slow.keys()) if slow[seed] > 0]
            against = {"synchronous": "a synchronous batch", "group": "a group barrier"}[other]
            claim = f"Single rollouts make more updates an hour than {against} ({clock} time)"
            measure = "ratio of updates an hour, by seed"
            claims.append(judge_claim(claim, ratios, side="above", bound=1.0, measure=measure))
    return claims


THROUGHPUT = Experiment(
    name="throughput",
    plan=plan,
    work=work,
    judge=judge,
    columns={
        "updates_per_hour": "updates an hour",
        "idle_share": "idle slots",
        "trainer_idle_share": "idle trainer",
        "staleness": "staleness",
    },
    draw=draw_bars,
)
