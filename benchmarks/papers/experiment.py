"""What every experiment is: jobs, the work of one, the claims that its rows decide, and how they are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.papers.lags import Lag
from benchmarks.papers.runs import Job, Row, Work
from benchmarks.papers.statistics import CURVE_STEP, Claim, find_collapse, find_gain, judge_run, moving_means
from benchmarks.papers.training import Course, Setup


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    quick: bool
    seeds: int
    objectives: tuple[str, ...] = ()
    """Only these variants; empty: all."""
    updates: int | None = None
    task: str | None = None
    lag: Lag | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    """Changes to the learner's settings of every run."""

    def choose(self, variants: Mapping[str, Setup]) -> list[Job]:
        """A job for each variant that was asked for and each seed, with the changes asked for.

        Raises ValueError where an unknown variant was asked for.
        """
        unknown = [name for name in self.objectives if name not in variants]
        if unknown:
            raise ValueError(f"--objectives: no variant {', '.join(unknown)}; there are {', '.join(variants)}")
        chosen = {name: variants[name] for name in self.objectives or variants}
        changed = {name: self._change(setup) for name, setup in chosen.items()}
        # Seed by seed, so that an interrupted command leaves whole comparisons.
        return [Job(name, seed, setup, setup.updates) for seed in range(self.seeds) for name, setup in changed.items()]

    def _change(self, setup: Setup) -> Setup:
        return replace(
            setup,
            updates=self.updates or setup.updates,
            task=self.task or setup.task,
            lag=self.lag or setup.lag,
            settings={**setup.settings, **self.settings},
        )


@dataclass(frozen=True, slots=True)
class Experiment:
    """One of the commands."""

    name: str
    plan: Callable[[Options], list[Job]]
    work: Work
    judge: Callable[[Sequence[Row]], list[Claim]]
    columns: Mapping[str, str]
    """Field of the rows → heading; numbers are shown with their interval over the seeds."""
    draw: Callable[[Sequence[Row], Path], None]
    """Write the figure."""


def summarise(course: Course) -> Row:
    """The figures of a training run that all experiments share. Rewards are means over the trajectories of an update,
    averaged over 50 updates; `curve` holds every tenth of these averages, the first over updates 1–50."""
    rewards = course.mean_rewards
    means = moving_means(rewards)
    return {
        "start_reward": course.start_reward,
        "final_reward": means[-1],
        "best_reward": max(means),
        "mean_reward": sum(rewards) / len(rewards),
        "collapse_step": find_collapse(rewards),
        "outcome": judge_run(course.start_reward, rewards),
        "updates_to_learn": find_gain(course.start_reward, rewards),
        "failed_updates": course.failed_updates,
        "curve": [round(mean, 4) for mean in means[::CURVE_STEP]],
    }


def by_seed(rows: Sequence[Row], variant: str, name: str) -> dict[int, float]:
    """Seed → the figure `name` of that variant, where it has one."""
    return {row["seed"]: row[name] for row in rows if row["objective"] == variant and row.get(name) is not None}


def find_differences(rows: Sequence[Row], left: str, right: str, name: str) -> list[float]:
    """Left minus right in the figure `name`, of each seed that has both: seeds are paired."""
    lefts, rights = by_seed(rows, left, name), by_seed(rows, right, name)
    return [lefts[seed] - rights[seed] for seed in sorted(lefts.keys() & rights.keys())]


def kept_shares(rows: Sequence[Row], variant: str) -> list[float]:
    """Final over best reward of the seeds that learned: below one half the run has collapsed."""
    return [
        row["final_reward"] / row["best_reward"]
        for row in rows
        if row["objective"] == variant and row["outcome"] != "did_not_learn"
    ]
