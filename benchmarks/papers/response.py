"""What the response to a shift of taste is worth: the same learner with it and without, where taste changes and where
it does not.

Unlike the papers' experiments the step falls while learning and rises again at a reaction, as the service has it by
default; without the response it falls once.
"""

from collections.abc import Callable, Sequence

from benchmarks.papers.drift import KL, LAG, PHASE_UPDATES, PHASES, QUICK_PHASES, measure_switches, split_phases
from benchmarks.papers.experiment import Experiment, Options, by_seed, find_differences, summarise
from benchmarks.papers.figures import draw_curves
from benchmarks.papers.runs import Job, Row
from benchmarks.papers.statistics import Claim, judge_claim
from benchmarks.papers.tasks import STYLES
from benchmarks.papers.training import Setup, train

STEP = {"schedule": "cosine", "schedule_updates": 64}
"""Twice the updates of the service's default: the small policy takes about twice as many to learn a style."""
WITH, WITHOUT = "response", "no response"
STEADY_WITH, STEADY_WITHOUT = "response on one taste", "no response on one taste"
CONSTANT = "no response at a constant step"
"""So that the response is not only compared with a learner whose step has become small."""


def plan(options: Options) -> list[Job]:
    phases = QUICK_PHASES if options.quick else PHASES

    def make(tastes: int, response: bool, **settings: object) -> Setup:
        return Setup(
            "sao",
            task="styles",
            lag=LAG,
            updates=phases * PHASE_UPDATES,
            settings={"kl_coefficient": KL, **STEP, **settings},
            tastes=STYLES[:tastes],
            response=response,
        )

    return options.choose(
        {
            WITH: make(phases, True),
            WITHOUT: make(phases, False),
            CONSTANT: make(phases, False, schedule="constant"),
            STEADY_WITH: make(1, True),
            STEADY_WITHOUT: make(1, False),
        }
    )


def work(job: Job, tick: Callable[[], None]) -> Row:
    course = train(job.setup, job.seed, tick)
    switches = len(job.setup.tastes) - 1
    row = summarise(course) | {
        "shifts": len(course.shifts),
        "false_shifts": max(0, len(course.shifts) - switches),
        "kept": [round(reaction.kept, 3) for reaction in course.reactions],
    }
    return row | (measure_switches(split_phases(course, job.setup)) if switches else {})


def judge(rows: Sequence[Row]) -> list[Claim]:
    return [
        claim
        for other in (WITHOUT, CONSTANT)
        for claim in (
            judge_claim(
                f"With the response a switch is followed in fewer trajectories than with {other}",
                find_ratios(rows, WITH, other, "trajectories_to_recover"),
                side="below",
                bound=1.0,
                measure=f"trajectories to recover, response / {other}, mean over the switches, by seed",
            ),
            judge_claim(
                f"With the response a switch costs less regret than with {other}",
                find_differences(rows, other, WITH, "regret"),
                side="above",
                bound=0.0,
                measure=f"regret of {other} − response, mean over the switches, by seed",
            ),
        )
    ] + [
        judge_claim(
            "Where taste does not change, the response costs no more than 0.02 of the mean reward",
            find_differences(rows, STEADY_WITHOUT, STEADY_WITH, "mean_reward"),
            side="below",
            bound=0.02,
            measure="mean reward without − with the response, by seed",
        )
    ]


def find_ratios(rows: Sequence[Row], left: str, right: str, name: str) -> list[float]:
    """Left over right in the figure `name`, of each seed that has both."""
    lefts, rights = by_seed(rows, left, name), by_seed(rows, right, name)
    return [lefts[seed] / rights[seed] for seed in sorted(lefts.keys() & rights.keys())]


RESPONSE = Experiment(
    name="response",
    plan=plan,
    work=work,
    judge=judge,
    columns={
        "trajectories_to_recover": "trajectories to recover",
        "unrecovered": "not recovered",
        "regret": "regret",
        "mean_reward": "mean reward",
        "shifts": "shifts found",
        "false_shifts": "of them false",
    },
    draw=draw_curves,
)
