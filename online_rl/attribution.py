"""Why the reward of all traffic fell: users changed their mind, or different users came. Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from online_rl.change_points import score_mix

FEW = 8
"""Rewards of a cohort below which its mean says nothing."""
MIN_VARIANCE = 0.1
MIN_KNOWN = 64
"""Rewards of known cohort before a fall from which a dimension can explain it."""
NEW = 4.0
"""Times that the share of a cohort of few rewards must have grown for a new one."""
CLEARLY = 2.0
"""Standard errors by which a cohort must have fallen less than all traffic to have stayed."""


EXPLAINED = 0.5
"""Share of a fall from which it counts as the prompt mix's …"""
EXPLAINED_BY_A_CHANGE = 0.25
"""… or from which it does where the mix clearly changed at the same moment: clusters blur who asked, which makes the
share that they explain too small (attenuation)."""
MIX_CHANGED = 4.0
"""Standard errors by which the mix must have changed for that."""
STAYED = 0.1
"""Share of the traffic that clearly did not fall, from which a fall is not of all traffic."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Of a fall of the mean reward."""

    mix_share: float = 0.0
    """Share of the fall that the changed shares of the cohorts explain; 1 and more where nobody changed their mind."""
    mix_score: float = 0.0
    """Standard errors by which those shares changed at that moment."""
    stayed_share: float = 0.0
    """Share of the traffic behind the change in cohorts that clearly did not fall with the rest."""

    @property
    def is_mix(self) -> bool:
        changed = self.mix_score >= MIX_CHANGED
        return self.mix_share >= (EXPLAINED_BY_A_CHANGE if changed else EXPLAINED)

    @property
    def is_of_some(self) -> bool:
        """Whether cohorts pull apart, so that the fall is not of all traffic."""
        return self.stayed_share >= STAYED


def attribute(rewards: Sequence[float], split: int, labels: Mapping[str, Sequence[str]]) -> Attribution:
    """Of the fall from `rewards[:split]` to `rewards[split:]`: the mix in the dimension that explains most, and who
    stayed in the dimension that shows it best.

    `labels`: dimension → the cohort of each reward, empty where unknown.
    """
    parts = [_in_dimension(rewards, split, found) for found in labels.values()]
    if not parts:
        return Attribution()
    mix = max(parts, key=lambda part: (part.is_mix, part.mix_share))
    return Attribution(mix.mix_share, mix.mix_score, max(part.stayed_share for part in parts))


def _in_dimension(rewards: Sequence[float], split: int, labels: Sequence[str]) -> Attribution:
    """The fall is the sum of two parts (Kitagawa, Components of a Difference Between Two Rates, 1955, with the rates
    before as the reference): what the mix did, ``Σ (s_c − s'_c)·r_c``, and what users did, ``Σ s'_c·(r_c − r'_c)``, for
    shares s and rates r before, s' and r' behind. A cohort that was not there before says nothing about what
    users did: all of it is the mix. A reward of unknown cohort is left out.
    """
    first = _group(rewards[:split], labels[:split])
    last = _group(rewards[split:], labels[split:])
    known, count = sum(map(len, first.values())), sum(map(len, last.values()))
    if known < MIN_KNOWN or not count:
        return Attribution()
    before, after = (sum(map(sum, groups.values())) / size for groups, size in ((first, known), (last, count)))
    changed_mind = sum(_fall_within(first.get(name, []), own, known / count) for name, own in last.items()) / count
    stayed = sum(len(own) for name, own in last.items() if _has_stayed(first.get(name, []), own, before - after))
    return Attribution(
        mix_share=1.0 - changed_mind / (before - after) if before > after else 0.0,
        mix_score=score_mix([name for name in labels[:split] if name], [name for name in labels[split:] if name]),
        stayed_share=stayed / count,
    )


def _is_new(first: Sequence[float], last: Sequence[float], ratio: float) -> bool:
    """Whether next to nothing of a cohort was there before; `ratio`: rewards before to those behind. A change is never
    placed exactly, so the first of the newcomers may lie before it."""
    return not first or (len(first) < FEW <= len(last) and len(last) * ratio > NEW * len(first))


def _fall_within(first: Sequence[float], last: Sequence[float], ratio: float) -> float:
    """Sum over a cohort's rewards of what it lost against its own level before; 0 for a new one."""
    return 0.0 if _is_new(first, last, ratio) else sum(fmean(first) - reward for reward in last)


def _has_stayed(first: Sequence[float], last: Sequence[float], fall: float) -> bool:
    if min(len(first), len(last)) < FEW:
        return False
    own = fmean(first) - fmean(last)
    error = math.sqrt(_variance(first) / len(first) + _variance(last) / len(last))
    return own < fall / 2 and fall - own >= CLEARLY * error


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return max(MIN_VARIANCE, fmean((value - mean) ** 2 for value in values))


def _group(rewards: Sequence[float], labels: Sequence[str]) -> dict[str, list[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for reward, label in zip(rewards, labels, strict=True):
        if label:
            found[label].append(reward)
    return found
