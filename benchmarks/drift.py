"""Drift detection on seeded streams, against plain ADWIN, plain Page-Hinkley and a fixed threshold.

    .venv/bin/python -m benchmarks.drift --json d.json             # 20 held-out seeds: about 5 minutes of one core
    .venv/bin/python -m benchmarks.drift --quick                   # 4 of them, shorter streams
    .venv/bin/python -m benchmarks.drift --first-seed 1000         # the seeds that thresholds were chosen on

The others see what they can see: the reward, one detector for all traffic and one for each cohort, with river's own
settings. Only their alarms of a falling mean count, which favours them while the policy learns. Intervals are 95%:
Poisson's for rates, Clopper and Pearson's for shares, of order statistics for medians.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from river import drift as river_drift
from scipy import stats

from benchmarks import drift_streams as streams
from benchmarks.drift_streams import COHORTS, Maker, Rated, Stream
from online_rl.cohorts import name_length
from online_rl.drift import DriftMonitor
from online_rl.drift_events import Shift
from online_rl.settings import DriftSettings

HELD_OUT = 20_000
"""First of the held-out seeds; those from 1000 on were looked at while thresholds were chosen."""
NULL, CHANGE, COHORT_CHANGE = 2_000, 800, 4_000
"""Lengths of a stream: without a shift, with one halfway, with one in one cohort of twenty."""


@dataclass(frozen=True, slots=True)
class Scenario:
    make: Maker
    length: int
    cohorts: int
    kind: str
    """`null`, `taste`, `cohort` or `mix`."""


SCENARIOS = {
    "still": Scenario(streams.still, NULL, 0, "null"),
    "learning, with dips": Scenario(streams.learning, NULL, 0, "null"),
    "still, 20 cohorts": Scenario(streams.still, NULL, COHORTS, "null"),
    "learning, with dips, 20 cohorts": Scenario(streams.learning, NULL, COHORTS, "null"),
    "0.6 to 0.2": Scenario(streams.step, CHANGE, 0, "taste"),
    "0.6 to 0.2, 20 cohorts": Scenario(streams.step, CHANGE, COHORTS, "taste"),
    "0.9 to 0.05, as in the demo": Scenario(streams.reversal, CHANGE, 0, "taste"),
    "0.6 to 0.2 in one of 20 cohorts": Scenario(streams.cohort_step, COHORT_CHANGE, COHORTS, "cohort"),
    "other prompts": Scenario(streams.other_prompts, CHANGE, 0, "mix"),
    "other prompts, 20 cohorts": Scenario(streams.other_prompts, CHANGE, COHORTS, "mix"),
    "other users": Scenario(streams.other_users, CHANGE, COHORTS, "mix"),
}


@dataclass(frozen=True, slots=True)
class Alarm:
    index: int
    """Of the trajectory that raised it."""
    cohort: str
    """Tag; empty for all traffic or another dimension."""
    cause: str
    of_all: bool
    """Whether it is said of all traffic."""


class Watcher(Protocol):
    def see(self, index: int, rated: Rated) -> list[Alarm]: ...


class Ours:
    """The monitor as the learner runs it."""

    def __init__(self) -> None:
        self._monitor = DriftMonitor(DriftSettings())

    def see(self, index: int, rated: Rated) -> list[Alarm]:
        cohorts = {"key": "one", "length": name_length(len(rated.prompt))} | ({"tag": rated.tag} if rated.tag else {})
        found = self._monitor.observe(rated.reward, rated.residual, float(index), cohorts=cohorts, prompt=rated.prompt)
        return [
            Alarm(index, one.cohort.removeprefix("tag="), one.cause, not one.cohort)
            for one in found
            if isinstance(one, Shift)
        ]


Falls = Callable[[float], bool]
"""Takes the next reward; whether it raises an alarm of a fall."""


class Plain:
    """A detector of falls for all traffic and one for each cohort."""

    def __init__(self, make: Callable[[], Falls]) -> None:
        self._make = make
        self._detectors: dict[str, Falls] = {"": make()}

    def see(self, index: int, rated: Rated) -> list[Alarm]:
        watched = ["", rated.tag] if rated.tag else [""]
        found: list[Alarm] = []
        for cohort in watched:
            if cohort not in self._detectors:
                self._detectors[cohort] = self._make()
            if self._detectors[cohort](rated.reward):
                found.append(Alarm(index, cohort, "taste", not cohort))
        return found


def make_adwin() -> Falls:
    detector = river_drift.ADWIN()

    def falls(reward: float) -> bool:
        before = detector.estimation
        detector.update(reward)
        return detector.drift_detected and detector.estimation < before

    return falls


def make_page_hinkley() -> Falls:
    detector = river_drift.PageHinkley(mode="down")

    def falls(reward: float) -> bool:
        detector.update(reward)
        return detector.drift_detected

    return falls


def make_threshold() -> Falls:
    """The mean of the last 32 rewards falls below 0.4, after it was above."""
    recent: list[float] = []
    above = False

    def falls(reward: float) -> bool:
        nonlocal above
        recent.append(reward)
        del recent[:-32]
        low = len(recent) == 32 and sum(recent) / 32 < 0.4
        alarm, above = low and above, len(recent) == 32 and not low
        return alarm

    return falls


WATCHERS: dict[str, Callable[[], Watcher]] = {
    "ours": Ours,
    "adwin": lambda: Plain(make_adwin),
    "page_hinkley": lambda: Plain(make_page_hinkley),
    "threshold": lambda: Plain(make_threshold),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one stream."""

    false_alarms: int
    rewards: int
    """In which a false alarm could be raised."""
    delay: float | None
    """Trajectories to the alarm (the cohort's own); infinite where there was none, None where nothing shifts."""
    named: bool | None
    """Of a changed mix: whether it was said, and nothing of a change of taste."""


def judge(scenario: Scenario, stream: Stream, alarms: Sequence[Alarm]) -> Outcome:
    length = len(stream.rated)
    if scenario.kind == "null" or stream.change is None:
        return Outcome(len(alarms), length, None, None)
    change = stream.change
    early = [alarm for alarm in alarms if alarm.index < change]
    late = [alarm for alarm in alarms if alarm.index >= change]
    if scenario.kind == "mix":
        causes = {alarm.cause for alarm in late}
        return Outcome(len(early), change, None, causes == {"prompt_mix"})
    wanted = stream.cohort or ""
    right = [a.index for a in late if a.cause == "taste" and (a.cohort == wanted if wanted else a.of_all)]
    if not right:
        return Outcome(len(early), change, math.inf, None)
    own = sum(not wanted or one.tag == wanted for one in stream.rated[change : right[0] + 1])
    return Outcome(len(early), change, float(own), None)


def run(seeds: Sequence[int], shorten: int, console: Console) -> dict[str, dict[str, list[Outcome]]]:
    """Watcher → scenario → an outcome for each seed."""
    found: dict[str, dict[str, list[Outcome]]] = {name: {title: [] for title in SCENARIOS} for name in WATCHERS}
    with Progress(console=console) as progress:
        task = progress.add_task("streams", total=len(SCENARIOS) * len(seeds))
        for number, (title, scenario) in enumerate(SCENARIOS.items()):
            for seed in seeds:
                length = scenario.length // shorten if scenario.kind == "null" else scenario.length
                stream = scenario.make(np.random.default_rng([seed, number]), length, scenario.cohorts)
                for name, make in WATCHERS.items():
                    watcher = make()
                    alarms = [alarm for index, one in enumerate(stream.rated) for alarm in watcher.see(index, one)]
                    found[name][title].append(judge(scenario, stream, alarms))
                progress.advance(task)
    return found


def rate(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """False alarms per 10,000 rewards, with Garwood's exact interval."""
    count, unit = sum(one.false_alarms for one in outcomes), sum(one.rewards for one in outcomes) / 10_000
    low = float(stats.chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0
    return {"value": count / unit, "low": low / unit, "high": float(stats.chi2.ppf(0.975, 2 * count + 2)) / 2 / unit}


def median(delays: Sequence[float]) -> dict[str, float | None]:
    """With the order statistics that enclose it with 95%; None where it is infinite: not found in time."""
    ordered = sorted(delays)
    rank = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    found = {
        "value": middle,
        "low": ordered[max(0, rank - 1)],
        "high": ordered[min(len(ordered), len(ordered) - rank + 1) - 1],
    }
    found["worst"] = ordered[-1]
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def share(named: Sequence[bool]) -> dict[str, float]:
    count, total = sum(named), len(named)
    low = float(stats.beta.ppf(0.025, count, total - count + 1)) if count else 0.0
    high = float(stats.beta.ppf(0.975, count + 1, total - count)) if count < total else 1.0
    return {"value": count / total, "low": low, "high": high}


def summarise(found: dict[str, list[Outcome]]) -> dict[str, Any]:
    """The figures of one detector; `scenarios` has them one by one."""
    scenarios: dict[str, Any] = {}
    for title, outcomes in found.items():
        match SCENARIOS[title].kind:
            case "null":
                scenarios[title] = rate(outcomes)
            case "mix":
                scenarios[title] = share([bool(one.named) for one in outcomes])
            case _:
                scenarios[title] = median([one.delay for one in outcomes if one.delay is not None])
    nulls = [one for title, outcomes in found.items() if SCENARIOS[title].kind == "null" for one in outcomes]
    mixes = [bool(o.named) for title, outcomes in found.items() if SCENARIOS[title].kind == "mix" for o in outcomes]
    return {
        "false_alarms_per_10k": rate(nulls)["value"],
        "false_alarms_interval": rate(nulls),
        "median_delay": scenarios["0.6 to 0.2"]["value"],
        "median_delay_20_cohorts": scenarios["0.6 to 0.2, 20 cohorts"]["value"],
        "median_delay_one_cohort": scenarios["0.6 to 0.2 in one of 20 cohorts"]["value"],
        "prompt_mix_named": share(mixes)["value"],
        "scenarios": scenarios,
    }


def tabulate(summaries: dict[str, dict[str, Any]], seeds: int) -> Table:
    units = {
        "null": "false alarms in 10,000",
        "taste": "median delay",
        "cohort": "median delay, its own",
        "mix": "named",
    }
    table = Table(title=f"Drift detection, {seeds} seeds (95% intervals)")
    for column in ("stream", "figure", *summaries):
        table.add_column(column)
    for title, scenario in SCENARIOS.items():
        cells = [summary["scenarios"][title] for summary in summaries.values()]
        digits = 2 if scenario.kind in ("null", "mix") else 0
        table.add_row(title, units[scenario.kind], *(_cell(cell, digits) for cell in cells))
    return table


def _cell(cell: dict[str, float | None], digits: int) -> str:
    value, low, high = (
        "never" if cell[name] is None else f"{cell[name]:.{digits}f}" for name in ("value", "low", "high")
    )
    return f"{value} ({low} … {high})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drift", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--seeds", type=int, help="how many (default 20, with --quick 4)")
    parser.add_argument("--first-seed", type=int, default=HELD_OUT, help=f"default {HELD_OUT}")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    count = arguments.seeds or (4 if arguments.quick else 20)
    seeds = range(arguments.first_seed, arguments.first_seed + count)
    console = Console()
    if not console.is_terminal:
        console.width = 150
    found = run(seeds, 4 if arguments.quick else 1, console)
    summaries = {name: summarise(outcomes) for name, outcomes in found.items()}
    console.print(tabulate(summaries, count))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(summaries | {"seeds": list(seeds)}, indent=1))
        console.print(f"{arguments.json}", highlight=False)


if __name__ == "__main__":
    main()
