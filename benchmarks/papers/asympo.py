"""The claims of ASymPO's paper (arXiv 2606.03070) on objectives that look at the current policy only."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch

from benchmarks.papers.experiment import Experiment, Options, find_differences, kept_shares, summarise
from benchmarks.papers.figures import draw_curves
from benchmarks.papers.lags import MAX_LAG, Lag
from benchmarks.papers.runs import Job, Row
from benchmarks.papers.statistics import Claim, judge_claim
from benchmarks.papers.training import Setup, train
from feedback.schemas import Trajectory
from online_rl.baselines.group import GroupBaseline
from online_rl.batch import make_batch
from online_rl.objectives import OBJECTIVES
from online_rl.objectives.responses import response_means
from online_rl.trainer import Trainer

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "naive": ("naive", {}),
    "spo 0": ("spo", {"spo_alpha": 0.0}),
    "spo 0.2": ("spo", {"spo_alpha": 0.2}),
    "spo 1": ("spo", {"spo_alpha": 1.0}),
    "asympo": ("asympo", {}),
    "gpg": ("gpg", {}),
    "grpo": ("grpo", {}),
}
LAGS = (0, 8, MAX_LAG)
WATCH_EVERY = 5
"""Updates between two looks at the negative side."""
BUCKETS = {"0": (0, 0), "1-8": (1, 8), "9-16": (9, 16), "17-24": (17, MAX_LAG)}
FRESH, STALE = "negative share, staleness 0-8", "negative share, staleness 17-24"
QUICK_UPDATES = 100


def plan(options: Options) -> list[Job]:
    updates = QUICK_UPDATES if options.quick else 400
    lags = (0, MAX_LAG) if options.quick else LAGS
    variants: dict[str, Setup] = {}
    for lag in lags:
        for name, (objective, settings) in VARIANTS.items():
            variants[f"{name} @ {lag}"] = Setup(objective, lag=Lag("uniform", lag), updates=updates, settings=settings)
    return options.choose(variants)


class NegativeSide:
    """Sums ``|A_g S_g|`` under the current policy, by sign of A and by staleness, over the batches of a run.

    Every objective is measured by the naive terms, so that what is compared is the data and the policy, not a weight.
    """

    def __init__(self) -> None:
        self.bytes: float = 0.0
        """Mean size of a trajectory of the first batch, with only what the objective needs."""
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._seen = 0

    @torch.no_grad()
    def watch(self, trainer: Trainer, trajectories: Sequence[Trajectory], version: int) -> None:
        if self._seen == 0:
            sizes = [count_bytes(trajectory, trainer.settings.objective) for trajectory in trajectories]
            self.bytes = sum(sizes) / len(sizes)
        self._seen += 1
        if self._seen % WATCH_EVERY:
            return
        advantages = GroupBaseline(scaled=False).advantages(trajectories)
        settings = trainer.settings
        batch = make_batch(trajectories, max_tokens=settings.micro_batch_tokens, gamma=settings.gamma)
        for part in batch.packs:
            surprise = -response_means(trainer.policy.score(part.pack).logprobs, part.pack.lengths)
            for member, term in zip(part.pack.members, surprise.tolist(), strict=True):
                oldest = trajectories[member].oldest_version
                assert oldest is not None
                self._sums[find_bucket(version - oldest)][advantages[member] < 0] += abs(advantages[member] * term)

    def share(self, *buckets: str) -> float | None:
        """Of negative advantages in the sum over `buckets`; None where there is nothing."""
        positive, negative = (sum(self._sums[bucket][side] for bucket in buckets) for side in (0, 1))
        return negative / (positive + negative) if positive + negative > 0 else None


def find_bucket(staleness: int) -> str:
    """Raises ValueError beyond the simulator's versions."""
    for name, (first, last) in BUCKETS.items():
        if first <= staleness <= last:
            return name
    raise ValueError(f"staleness {staleness} is not within 0 to {MAX_LAG}")


def count_bytes(trajectory: Trajectory, objective: str) -> int:
    """JSON bytes of `trajectory` without the log-probabilities and versions that `objective` can do without."""
    needs = OBJECTIVES[objective].needs
    spared = {
        name
        for name, needed in (("behavior_logprobs", needs.behavior_logprobs), ("spans", needs.versions))
        if not needed
    }
    return len(trajectory.model_dump_json(exclude=spared).encode())


def work(job: Job, tick: Callable[[], None]) -> Row:
    side = NegativeSide()
    course = train(job.setup, job.seed, tick, side.watch)
    return summarise(course) | {
        "negative_share": {bucket: side.share(bucket) for bucket in BUCKETS},
        FRESH: side.share("0", "1-8"),
        STALE: side.share("17-24"),
        "bytes": side.bytes,
    }


def judge(rows: Sequence[Row]) -> list[Claim]:
    claims: list[Claim] = []
    at = f"@ {MAX_LAG}"
    for name in ("naive", "gpg", "spo 1"):
        kept = kept_shares(rows, f"{name} {at}")
        measure = f"{name} {at}: final / best reward of the seeds that learned"
        claims.append(judge_claim(f"{name} collapses under lag", kept, side="below", bound=0.5, measure=measure))
    for name in ("spo 0.2", "asympo", "grpo"):
        kept = kept_shares(rows, f"{name} {at}")
        measure = f"{name} {at}: final / best reward of the seeds that learned"
        claims.append(judge_claim(f"{name} is stable under lag", kept, side="above", bound=0.5, measure=measure))
    for left, right, claim, bound in (
        ("asympo", "grpo", "ASymPO is competitive with GRPO (at most 0.05 below)", -0.05),
        ("spo 0.2", "grpo", "SPO is competitive with GRPO (at most 0.05 below)", -0.05),
        ("asympo", "naive", "ASymPO ends above naive", 0.0),
        ("spo 0.2", "spo 0", "SPO's negative side is worth something (α = 0.2 above α = 0)", 0.0),
    ):
        differences = find_differences(rows, f"{left} {at}", f"{right} {at}", "final_reward")
        measure = f"final reward of {left} − {right} {at}, by seed"
        claims.append(judge_claim(claim, differences, side="above", bound=bound, measure=measure))
    # SPO with α = 1 is the naive objective by definition: the same seed must give the same rewards.
    gaps = [abs(gap) for gap in find_differences(rows, f"spo 1 {at}", f"naive {at}", "final_reward")]
    measure = "|final reward of spo 1 − naive|, by seed"
    claims.append(judge_claim("SPO with α = 1 behaves as naive", gaps, side="below", bound=0.05, measure=measure))
    for name in VARIANTS:
        chosen = [row for row in rows if row["objective"] == f"{name} {at}" and None not in (row[STALE], row[FRESH])]
        growth = [row[STALE] - row[FRESH] for row in chosen]
        measure = f"{name} {at}: share at staleness 17–24 − share at 0–8"
        claim = f"The negative side's share of the loss grows with staleness ({name})"
        claims.append(judge_claim(claim, growth, side="above", bound=0.0, measure=measure))
    return claims


ASYMPO = Experiment(
    name="asympo",
    plan=plan,
    work=work,
    judge=judge,
    columns={
        "final_reward": "final",
        "best_reward": "best",
        "collapse_step": "collapse step",
        "outcome": "outcome",
        FRESH: "negative share, fresh",
        STALE: "negative share, stale",
        "bytes": "bytes a trajectory",
    },
    draw=draw_curves,
)
