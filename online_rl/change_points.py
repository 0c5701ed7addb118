"""The most likely change within a window of values: a fall of their mean, or another mix of labels. Pure.

Both are likelihood-ratio scans: each split of the window is scored by how much likelier two levels make it than one,
and the best split is the change. The score is given as the signed root of the likelihood ratio, ``√(2·ln Λ)``, which
at a fixed split is in standard errors (Wilks 1938), so that one threshold serves all of them.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

WINDOW = 256
"""Values that a change is sought in."""
MIN_BEFORE = 16
MIN_AFTER = 12
"""Within dips of the policy itself, runs of eight bad answers are common enough to be false alarms."""
MIN_DISPERSION = 0.1
"""Values that hardly vary would make every small fall stand out."""
RARE = 8
"""Labels seen less often than this in a window are counted as one."""


@dataclass(frozen=True, slots=True)
class Fall:
    """The most likely fall of the mean in a sequence."""

    since: int
    """Values after it."""
    before: float
    after: float
    standard_errors: float
    """``√(2·ln Λ)``; 0 where no split has the lower mean behind it."""


@dataclass(frozen=True, slots=True)
class MixChange:
    """The most likely change of the shares of labels in a sequence."""

    since: int
    """Labels after it."""
    label: str
    """Whose share changed most; empty for the rare ones together."""
    share_before: float
    share_after: float
    distance: float
    """Total variation of the shares before and after: what part of the traffic is another one, 0 … 1."""
    standard_errors: float


def find_fall(values: Sequence[float], wander: float = 0.0) -> Fall | None:
    """The split of `values` that is most likely a fall of the mean, at least `MIN_BEFORE` and `MIN_AFTER` values on its
    sides; None where there are too few values.

    The quasi-binomial likelihood ratio on values scaled to 0 … 1 by their range (at least 1),
    ``ln Λ = (n·h(m) − k·h(m₁) − (n−k)·h(m₂)) / φ`` with the means m, m₁, m₂ of all, before and after,
    ``h(p) = −p ln p − (1−p) ln(1−p)``, and φ the variance within both sides over the binomial one, at most 1
    (McCullagh and Nelder, Generalized Linear Models, 4.5). Exact for rewards of 0 and 1, where φ is 1.

    The split is the best one against no fall at all; its score is against a fall by `wander`, a share of the level
    above the lowest value: ``ln Λ = k·d(m₁, p) + (n−k)·d(m₂, (1−wander)·p)`` with the binomial divergence d and the p
    that makes it least.
    """
    count = len(values)
    if count < MIN_BEFORE + MIN_AFTER:
        return None
    lowest = min(values)
    span = max(1.0, max(values) - lowest)
    sums = list(accumulate((value - lowest) / span for value in values))
    total = sums[-1]
    whole = count * _entropy(total / count)

    def gain(behind: int) -> float:
        ahead, last = sums[count - behind - 1], total - sums[count - behind - 1]
        first_mean, last_mean = ahead / (count - behind), last / behind
        if first_mean <= last_mean:
            return 0.0
        return whole - (count - behind) * _entropy(first_mean) - behind * _entropy(last_mean)

    since = max(_grid(count, MIN_AFTER), key=gain)
    since = max(_neighbours(since, count), key=lambda behind: (gain(behind), behind == since))
    split = count - since
    before, after = sums[split - 1] / split, (total - sums[split - 1]) / since
    binomial = split * before * (1 - before) + since * after * (1 - after)
    squares = sum(((value - lowest) / span) ** 2 for value in values)
    within = squares - split * before * before - since * after * after
    dispersion = min(1.0, max(MIN_DISPERSION, within / binomial)) if binomial > 1e-9 else 1.0
    ratio = _ratio_to_wander(before, split, after, since, 1.0 - wander)
    standard_errors = math.sqrt(2.0 * ratio / dispersion)
    return Fall(since, lowest + span * before, lowest + span * after, standard_errors)


def find_mix_change(labels: Sequence[str]) -> MixChange | None:
    """The split of `labels` at which their shares changed most likely; None where there are too few or only one kind.

    The likelihood ratio of multinomial shares (the G-test) with Williams' correction for small counts (Biometrika 63,
    1976). At a fixed split it is χ² of K−1 degrees of freedom for K kinds, and is given as the normal score of the
    same tail by the cube-root transform of Wilson and Hilferty (1931).
    """
    count = len(labels)
    totals = Counter(labels)
    common = {label for label, number in totals.items() if number >= RARE}
    kinds = [label if label in common else "" for label in labels]
    totals = Counter(kinds)
    freedom = len(totals) - 1
    if count < 2 * MIN_BEFORE or freedom < 1:
        return None
    behind: Counter[str] = Counter()
    gains: dict[int, float] = {}
    wanted = set(_grid(count, MIN_BEFORE))
    whole = _sum_logs(totals, count)
    columns = sum(count / number for number in totals.values()) - 1.0
    for after in range(1, count - MIN_BEFORE + 1):
        behind[kinds[count - after]] += 1
        if after in wanted:
            ahead = {kind: number - behind[kind] for kind, number in totals.items()}
            ratio = _sum_logs(ahead, count - after) + _sum_logs(behind, after) - whole
            gains[after] = ratio / _williams(count - after, after, columns, freedom)
    since = max(gains, key=gains.__getitem__)
    last, first = Counter(kinds[count - since :]), Counter(kinds[: count - since])
    changes = {kind: last[kind] / since - first[kind] / (count - since) for kind in totals}
    label = max(changes, key=lambda kind: (abs(changes[kind]), kind))
    return MixChange(
        since=since,
        label=label,
        share_before=first[label] / (count - since),
        share_after=last[label] / since,
        distance=sum(abs(change) for change in changes.values()) / 2,
        standard_errors=_normal_score(2.0 * max(0.0, gains[since]), freedom),
    )


def score_mix(first: Sequence[str], last: Sequence[str]) -> float:
    """By how many standard errors the shares of the labels differ: the G-test at a known split."""
    ahead, behind = Counter(first), Counter(last)
    totals = ahead + behind
    count, freedom = len(first) + len(last), len(totals) - 1
    if not first or not last or freedom < 1:
        return 0.0
    ratio = _sum_logs(ahead, len(first)) + _sum_logs(behind, len(last)) - _sum_logs(totals, count)
    columns = sum(count / number for number in totals.values()) - 1.0
    return _normal_score(2.0 * max(0.0, ratio) / _williams(len(first), len(last), columns, freedom), freedom)


def _williams(ahead: int, behind: int, columns: float, freedom: int) -> float:
    """The correction of G for counts of `ahead` and `behind`; `columns` is ``Σ n/n_k − 1``."""
    count = ahead + behind
    return 1.0 + (count / ahead + count / behind - 1.0) * columns / (6.0 * count * freedom)


def _grid(count: int, least: int) -> Iterator[int]:
    """Lengths behind a split, eight an octave: no change is further from one of them than a sixteenth of its age."""
    behind = least
    while behind <= count - MIN_BEFORE:
        yield behind
        behind += max(1, behind // 8)


def _neighbours(behind: int, count: int) -> range:
    """The lengths between `behind` and its neighbours on the grid."""
    step = behind // 8
    return range(max(MIN_AFTER, behind - step), min(count - MIN_BEFORE, behind + step) + 1)


def _ratio_to_wander(before: float, split: int, after: float, since: int, kept: float) -> float:
    """ln Λ of the levels `before` and `after` against p and ``kept·p``; 0 where the level fell by less."""
    if after >= kept * before:
        return 0.0
    ones = split * before + since * after
    # Where the likelihood of p is largest: c·n·p² − (A(1+c) + B + c·C)·p + A = 0.
    middle = ones * (1.0 + kept) + split * (1.0 - before) + kept * since * (1.0 - after)
    root = math.sqrt(max(0.0, middle * middle - 4.0 * kept * (split + since) * ones))
    likeliest = (middle - root) / (2.0 * kept * (split + since))
    return split * _divergence(before, likeliest) + since * _divergence(after, kept * likeliest)


def _divergence(share: float, other: float) -> float:
    """Kullback-Leibler divergence of two Bernoulli variables, nats."""
    other = min(1.0 - 1e-12, max(1e-12, other))
    return max(0.0, -_entropy(share) - share * math.log(other) - (1.0 - share) * math.log1p(-other))


def _entropy(share: float) -> float:
    """Of a Bernoulli variable, nats."""
    if share <= 0.0 or share >= 1.0:
        return 0.0
    return -share * math.log(share) - (1.0 - share) * math.log1p(-share)


def _sum_logs(counts: Mapping[str, int], total: int) -> float:
    """``Σ n_k ln(n_k / n)``: the largest log-likelihood of these counts."""
    return sum(number * math.log(number / total) for number in counts.values() if number)


def _normal_score(chi_squared: float, freedom: int) -> float:
    """The standard normal quantile of about the same tail as `chi_squared`."""
    if freedom == 1:
        return math.sqrt(chi_squared)
    width = 2.0 / (9.0 * freedom)
    return max(0.0, ((chi_squared / freedom) ** (1 / 3) - (1.0 - width)) / math.sqrt(width))
