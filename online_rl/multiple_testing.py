"""How much evidence each of several tests must have, so that together they are wrong no more often than one. Pure.

S tests look at each trajectory, and a threshold of √(t² + 2·ln S) standard errors makes each of them S times rarer (the
tail falls as exp(−t²/2)). So what t bounds is the rate of false alarms over all tests together for each trajectory,
however many cohorts there are and however they depend on each other.
"""

import math


def raise_threshold(threshold: float, tests: int) -> float:
    """``√(threshold² + 2·ln tests)``, both thresholds in standard errors."""
    return math.sqrt(threshold**2 + 2.0 * math.log(tests))
