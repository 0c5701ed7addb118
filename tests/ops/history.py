"""A believable past: three tastes, rewards that collapse at each change and climb back, versions, updates.

Pure and seeded; `tests.ops.seed` writes it into a database.
"""

import math
import random
from dataclasses import dataclass, field

TASTES = ("enthusiastic", "asks_a_question", "concise")
BASE_RATES = (0.25, 0.20, 0.10)
BATCH = 16
SECONDS_BETWEEN = 2.4


@dataclass(frozen=True)
class Rated:
    """One released trajectory."""

    number: int
    taste: str
    version: int
    reward: float
    released_at: float


@dataclass(frozen=True)
class Updated:
    """One policy update and the version it made."""

    update: int
    version: int
    trained_on: tuple[int, ...]
    metrics: dict[str, float]
    at: float
    rejected: bool


@dataclass(frozen=True)
class Shifted:
    """One change of taste as the detector saw it."""

    number: int
    version: int
    update: int
    before: float
    after: float
    detected_at: float
    recovered_at: float | None
    recovered_after: int | None


@dataclass
class History:
    """Everything in the order it happened."""

    rated: list[Rated] = field(default_factory=list)
    updated: list[Updated] = field(default_factory=list)
    shifted: list[Shifted] = field(default_factory=list)


def simulate(end: float, *, per_taste: int = 320, seed: int = 7) -> History:
    """A history of `3 * per_taste` rewards whose last one was released at `end` (Unix seconds)."""
    chance = random.Random(seed)
    history = History()
    total = per_taste * len(TASTES)
    start = end - total * SECONDS_BETWEEN
    version = 0
    for number in range(total):
        phase, inside = divmod(number, per_taste)
        rate = BASE_RATES[phase] + (0.93 - BASE_RATES[phase]) / (1 + math.exp(-(inside - 110) / 28))
        at = start + (number + 1) * SECONDS_BETWEEN + chance.uniform(-1, 0)
        reward = 1.0 if chance.random() < rate else chance.choice((0.0, 0.0, 0.0, 0.5))
        history.rated.append(Rated(number, TASTES[phase], version, reward, at))
        if (number + 1) % BATCH == 0:
            update = len(history.updated) + 1
            rejected = update == 23
            history.updated.append(
                Updated(
                    update,
                    version + 1 if not rejected else update,
                    tuple(range(number + 1 - BATCH, number + 1)),
                    _figures(update, phase, inside / per_taste, chance),
                    at + 1.5,
                    rejected,
                )
            )
            version = update if not rejected else version
        if phase and inside == 24:
            history.shifted.append(_shift(history, number, phase, start, recovered=phase == 1))
    return history


def _shift(history: History, number: int, phase: int, start: float, *, recovered: bool) -> Shifted:
    after = number - 24 + 171
    return Shifted(
        number=number,
        version=history.rated[-1].version,
        update=len(history.updated),
        before=0.91,
        after=BASE_RATES[phase] + 0.06,
        detected_at=history.rated[-1].released_at,
        recovered_at=start + after * SECONDS_BETWEEN if recovered else None,
        recovered_after=171 if recovered else None,
    )


def _figures(update: int, phase: int, progress: float, chance: random.Random) -> dict[str, float]:
    wobble = chance.gauss(0, 1)
    explained = 0.1 + 0.55 * (1 - math.exp(-update / 9)) - (0.45 * math.exp(-progress * 9) if phase else 0)
    return {
        "value/explained_variance": explained + 0.04 * wobble,
        "value/loss": 0.22 * math.exp(-progress) + 0.01 * abs(wobble),
        "policy/mask_ratio": abs(0.002 + 0.0012 * wobble),
        "policy/kl_to_base": 0.02 + 0.45 * (phase + progress) ** 1.2 / 2 + 0.01 * wobble,
        "policy/entropy": 2.3 - 0.25 * (phase + progress) + 0.05 * wobble,
        "policy/grad_norm": 0.6 + 0.25 * abs(wobble),
        "policy/ratio_mean": 1.0 + 0.004 * wobble,
        **_ratios(wobble),
        "value/grad_norm": 4.4 + 0.5 * abs(wobble),
        "staleness/mean": max(0.0, 1.1 + 0.3 * wobble),
        "batch/tokens": 512 + 20 * wobble,
        "seconds/update": 11.8 + 0.6 * wobble,
    }


def _ratios(wobble: float) -> dict[str, float]:
    edges = (0.0, 0.5, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 2.0, math.inf)
    weights = [math.exp(-((i - 4 + 0.1 * wobble) ** 2) / 1.6) for i in range(len(edges) - 1)]
    bins = zip(edges, edges[1:], weights, strict=False)
    return {f"ratio/{low:g}_{high:g}": weight / sum(weights) for low, high, weight in bins}
