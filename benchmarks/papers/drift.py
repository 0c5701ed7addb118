"""The users' taste changes: how many trajectories until each method has followed."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from benchmarks.papers.experiment import Experiment, Options, find_differences, summarise
from benchmarks.papers.figures import draw_curves
from benchmarks.papers.lags import Lag
from benchmarks.papers.runs import Job, Row
from benchmarks.papers.statistics import Claim, judge_claim
from benchmarks.papers.tasks import STYLES
from benchmarks.papers.training import Course, Setup, train
from online_rl.demo.report import find_recovery

OBJECTIVES: dict[str, tuple[str, dict[str, object]]] = {
    "sao": ("sao", {}),
    "running mean 32": ("running_mean", {"baseline_window": 32}),
    "running mean 128": ("running_mean", {"baseline_window": 128}),
    "running mean 512": ("running_mean", {"baseline_window": 512}),
    "ema": ("ema", {}),
}
LAG = Lag("uniform", 4)
KL = 0.05
"""The guard that keeps what the base model can do within reach; the service's own default is 0.03."""
LEVEL_WINDOW = 128
"""Rewards before a switch that say what level was reached."""
RECOVERED = 0.9
"""Share of that level at which a switch counts as followed."""
QUICK_PHASES, PHASES = 2, 3
PHASE_UPDATES = 150


def plan(options: Options) -> list[Job]:
    phases = QUICK_PHASES if options.quick else PHASES
    return options.choose(
        {
            variant: Setup(
                objective,
                task="styles",
                lag=LAG,
                updates=phases * PHASE_UPDATES,
                settings={"kl_coefficient": KL, **settings},
                tastes=STYLES[:phases],
            )
            for variant, (objective, settings) in OBJECTIVES.items()
        }
    )


def work(job: Job, tick: Callable[[], None]) -> Row:
    course = train(job.setup, job.seed, tick)
    return summarise(course) | measure_switches(split_phases(course, job.setup))


def split_phases(course: Course, setup: Setup) -> list[list[float]]:
    """The rewards of each taste's trajectories, in order."""
    phases: list[list[float]] = [[] for _ in setup.tastes]
    for update, rewards in enumerate(course.rewards):
        phases[setup.find_taste(update)] += rewards
    return phases


def measure_switches(phases: Sequence[Sequence[float]]) -> Row:
    """`phases`: what `split_phases` returns.

    After each switch: trajectories until the mean of 32 rewards is 90% of the best level that a phase before ended on,
    and the regret, the sum of level − reward over the phase. A phase that does not get there counts with all its
    trajectories.
    """
    recoveries: list[int | None] = []
    regrets: list[float] = []
    level = 0.0
    for before, after in pairwise(phases):
        level = max(level, fmean(before[-LEVEL_WINDOW:]))
        recoveries.append(find_recovery(after, level=RECOVERED * level))
        regrets.append(sum(level - reward for reward in after))
    counted = [len(after) if found is None else found for found, after in zip(recoveries, phases[1:], strict=True)]
    return {
        "recovered_after": recoveries,
        "trajectories_to_recover": fmean(counted),
        "unrecovered": sum(found is None for found in recoveries),
        "regret": fmean(regrets),
    }


def judge(rows: Sequence[Row]) -> list[Claim]:
    figures = {"trajectories_to_recover": "in fewer trajectories than", "regret": "with less regret than"}
    return [
        judge_claim(
            f"SAO recovers from a switch {words} {other}",
            find_differences(rows, other, "sao", figure),
            side="above",
            bound=0.0,
            measure=f"{figure} of {other} − sao, mean over the switches, by seed",
        )
        for other in OBJECTIVES
        if other != "sao"
        for figure, words in figures.items()
    ]


DRIFT = Experiment(
    name="drift",
    plan=plan,
    work=work,
    judge=judge,
    columns={
        "trajectories_to_recover": "trajectories to recover",
        "unrecovered": "not recovered",
        "regret": "regret",
        "mean_reward": "mean reward",
    },
    draw=draw_curves,
)
