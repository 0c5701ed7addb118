"""SAO with one part changed at a time."""

from collections.abc import Callable, Sequence

from benchmarks.papers.experiment import Experiment, Options, find_differences, summarise
from benchmarks.papers.figures import draw_curves
from benchmarks.papers.lags import Lag
from benchmarks.papers.runs import Job, Row
from benchmarks.papers.statistics import Claim, judge_claim
from benchmarks.papers.training import Setup, train

LAG = Lag("uniform", 8)
DEFAULT = "default"
SETTINGS: dict[str, dict[str, object]] = {
    DEFAULT: {},
    "K=1": {"value_updates": 1},
    "K=4": {"value_updates": 4},
    "attention trained": {"value_attention": "trained"},
    "full/frozen": {"value_model": "full"},
    "full/trained": {"value_model": "full", "value_attention": "trained"},
    "plain GAE": {"gae": "plain"},
    "step GAE": {"gae": "step"},
    "DIS 0.8/3": {"epsilon_low": 0.8, "epsilon_high": 3.0},
    "DIS 0.1/0.3": {"epsilon_low": 0.1, "epsilon_high": 0.3},
    "no DIS": {"epsilon_low": 1.0, "epsilon_high": 1e9},
    "values after": {"advantages_from": "after"},
    "not centred": {"center_advantages": False},
}
PRETRAINING = {"pretrained 256": 256, "pretrained 2048": 2048}
"""Variant → trajectories that the value model learns from before the first update."""
NORM, VARIANCE = "value/grad_norm", "value/explained_variance"
QUICK_UPDATES = 120


def plan(options: Options) -> list[Job]:
    updates = QUICK_UPDATES if options.quick else 400
    variants = {
        name: Setup("sao", lag=LAG, updates=updates, settings=changes) for name, changes in SETTINGS.items()
    } | {name: Setup("sao", lag=LAG, updates=updates, pretraining=count) for name, count in PRETRAINING.items()}
    return options.choose(variants)


def work(job: Job, tick: Callable[[], None]) -> Row:
    course = train(job.setup, job.seed, tick)
    return summarise(course) | {name: course.average(name) for name in (NORM, VARIANCE, "policy/mask_ratio")}


def judge(rows: Sequence[Row]) -> list[Claim]:
    def helps(claim: str, left: str, right: str, figure: str = "mean_reward") -> Claim:
        measure = f"{figure} of {left!r} − {right!r}, by seed"
        differences = find_differences(rows, left, right, figure)
        return judge_claim(claim, differences, side="above", bound=0.0, measure=measure)

    return [
        helps("K=2 value updates help against K=1", DEFAULT, "K=1"),
        helps("K=2 value updates help against K=4", DEFAULT, "K=4"),
        helps("Frozen value attention helps (adapters)", DEFAULT, "attention trained"),
        helps("Frozen value attention helps (full weights)", "full/frozen", "full/trained"),
        helps("Frozen attention lowers the value gradient norm", "full/trained", "full/frozen", NORM),
        helps("Frozen attention explains more variance", "full/frozen", "full/trained", VARIANCE),
        helps("Skip-observation helps against plain GAE", DEFAULT, "plain GAE"),
        helps("Token-level helps against step-level GAE", DEFAULT, "step GAE"),
        helps("A little value pretraining helps", "pretrained 256", DEFAULT),
        helps("Much value pretraining helps", "pretrained 2048", DEFAULT),
        helps("Value pretraining shortens the way to a gain of 0.2", DEFAULT, "pretrained 2048", "updates_to_learn"),
        helps("DIS helps against no bounds", DEFAULT, "no DIS"),
        helps("Values before the K updates are better than after", DEFAULT, "values after"),
        helps("Advantages centred over the batch help", DEFAULT, "not centred"),
    ]


ABLATIONS = Experiment(
    name="ablations",
    plan=plan,
    work=work,
    judge=judge,
    columns={
        "mean_reward": "mean reward",
        "final_reward": "final",
        "updates_to_learn": "updates to learn",
        "outcome": "outcome",
        VARIANCE: "explained variance",
        NORM: "value gradient",
        "policy/mask_ratio": "masked",
    },
    draw=draw_curves,
)
