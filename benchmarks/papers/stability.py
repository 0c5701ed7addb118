"""All objectives on one task under one lag: who learns, who collapses, and when."""

from collections.abc import Callable, Sequence

from benchmarks.papers.experiment import Experiment, Options, find_differences, kept_shares, summarise
from benchmarks.papers.figures import draw_curves
from benchmarks.papers.runs import Job, Row
from benchmarks.papers.statistics import Claim, judge_claim
from benchmarks.papers.training import Setup, train

OBJECTIVES = (
    "sao",
    "grpo",
    "grpo_dis",
    "ppo",
    "running_mean",
    "prompt_running_mean",
    "naive",
    "spo",
    "asympo",
    "gpg",
    "cispo",
    "gspo",
    "single_stream",
)
QUICK_UPDATES = 150
KEPT = "final / best reward of the seeds that learned"


def plan(options: Options) -> list[Job]:
    updates = QUICK_UPDATES if options.quick else 1000
    return options.choose({name: Setup(name, updates=updates) for name in OBJECTIVES})


def work(job: Job, tick: Callable[[], None]) -> Row:
    course = train(job.setup, job.seed, tick)
    names = ("policy/mask_ratio", "policy/grad_norm", "policy/entropy", "staleness/mean")
    return summarise(course) | {name: course.average(name) for name in names}


def judge(rows: Sequence[Row]) -> list[Claim]:
    claims = [
        judge_claim(
            f"{name} collapses under lag", kept_shares(rows, name), side="below", bound=0.5, measure=f"{name}: {KEPT}"
        )
        for name in ("naive", "gpg", "grpo", "ppo")
    ]
    claims += [
        judge_claim(
            f"{name} is stable under lag", kept_shares(rows, name), side="above", bound=0.5, measure=f"{name}: {KEPT}"
        )
        for name in ("sao", "grpo_dis", "spo", "asympo")
    ]
    claims += [
        judge_claim(
            f"SAO ends above {other}",
            find_differences(rows, "sao", other, "final_reward"),
            side="above",
            bound=0.0,
            measure=f"final reward of sao − {other}, by seed",
        )
        for other in ("grpo", "grpo_dis", "ppo", "prompt_running_mean")
    ]
    return claims


STABILITY = Experiment(
    name="stability",
    plan=plan,
    work=work,
    judge=judge,
    columns={
        "start_reward": "start",
        "final_reward": "final",
        "best_reward": "best",
        "collapse_step": "collapse step",
        "outcome": "outcome",
        "policy/mask_ratio": "masked",
    },
    draw=draw_curves,
)
