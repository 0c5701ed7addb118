"""The demo's report: its shape, and the arithmetic behind each figure."""

import json
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

WINDOW = 32
"""Rewards in every average of the report."""
CURVE_STEP = 16
"""Rewards in each point of `PhaseReport.reward_curve`."""
RECOVERED = 0.7
"""Moving average of the rewards at which a taste counts as learned."""


class PhaseReport(BaseModel):
    """One taste of the users."""

    model_config = ConfigDict(extra="forbid")

    name: str
    trajectories: int
    reward_first: float
    """Mean of the phase's first 32 rewards."""
    reward_last: float
    """Mean of its last 32 rewards."""
    quality_last: float
    """The lesser of `quality_parts`, on held-out prompts at the end of the phase."""
    quality_parts: dict[str, float]
    """`likelihood` and `diversity`, see `online_rl.demo.judge`."""
    recovered_after: int | None
    """Trajectories until the moving average of 32 rewards reached 0.7; None: it did not."""
    reward_curve: list[float] = []
    """Means of each 16 rewards in a row, in the order of rating: what a plot of the run shows."""


class Report(BaseModel):
    """What `--report FILE` holds."""

    model_config = ConfigDict(extra="forbid")

    phases: list[PhaseReport]
    versions_published: int
    requests: int
    """Chat requests that the users and the judge sent."""
    failed_requests: int
    """Chat requests without a complete 2xx answer, as the clients saw it."""
    feedback_accepted: int
    """Feedback that the service acknowledged."""
    trajectories_trained: int
    drift_events: int
    kl_to_base: float | None
    """Nats a token, of the last update."""
    mismatch_mean: float | None
    """Mean |difference| of serving and learner log-probabilities under equal weights, on the last publish's probes."""
    mismatch_kl: float | None
    seconds: float
    """Wall time of the demo, start and stop of the service included; of all parts where it was resumed."""
    seed: int
    learning_rate: float
    commit: str
    machine: str


def moving_average(rewards: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean of the last `window` rewards at each step; of all so far while there are fewer."""
    averages: list[float] = []
    total = 0.0
    for index, reward in enumerate(rewards):
        total += reward
        if index >= window:
            total -= rewards[index - window]
        averages.append(total / min(index + 1, window))
    return averages


def find_recovery(rewards: Sequence[float], window: int = WINDOW, level: float = RECOVERED) -> int | None:
    """How many rewards of the phase it took until the mean of its last `window` reached `level`; None if never."""
    for index, average in enumerate(moving_average(rewards, window)):
        if index + 1 >= window and average >= level - 1e-9:
            return index + 1
    return None


def summarise_phase(name: str, rewards: Sequence[float], quality_parts: dict[str, float]) -> PhaseReport:
    """The figures of one finished phase. Raises ValueError where there are no rewards."""
    if not rewards:
        raise ValueError(f"phase {name!r} has no rewards")
    first, last = rewards[:WINDOW], rewards[-WINDOW:]
    return PhaseReport(
        name=name,
        trajectories=len(rewards),
        reward_first=sum(first) / len(first),
        reward_last=sum(last) / len(last),
        quality_last=min(quality_parts.values()),
        quality_parts=quality_parts,
        recovered_after=find_recovery(rewards),
        reward_curve=[sum(part) / len(part) for part in split(rewards, CURVE_STEP)],
    )


def split(rewards: Sequence[float], size: int) -> list[Sequence[float]]:
    """`rewards` in parts of `size`; the last may be shorter."""
    return [rewards[start : start + size] for start in range(0, len(rewards), size)]


def write_json(path: Path, content: object) -> None:
    """Replace `path` as a whole, so that a reader or an interruption never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def describe_commit() -> str:
    """The commit that runs, `-dirty` where tracked files differ; `unknown` outside a repository."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def describe_machine() -> str:
    """Architecture, cores and memory: what a figure depends on most."""
    cores = len(psutil.Process().cpu_affinity() or [0]) if platform.system() == "Linux" else psutil.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return f"{platform.system()} {platform.machine()}, {cores} cores, {memory:.0f} GiB"
