"""How many versions behind a trajectory is: the controlled distribution of the simulator."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

MAX_LAG = 24
"""Versions that the simulator keeps beside the current one."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The distribution of the staleness (current version − oldest version of the trajectory), in versions.

    ``constant``: always `most`. ``uniform``: 0…`most`, equally often. ``geometric``: 0, 1, 2 … with the mean `most` / 4
    of the unbounded distribution, drawn again above `most`.
    """

    kind: Literal["constant", "uniform", "geometric"]
    most: int
    mixed: bool = True
    """Later turns of a trajectory may be sampled by later versions; else one version samples all of it."""

    def __post_init__(self) -> None:
        if not 0 <= self.most <= MAX_LAG:
            raise ValueError(
                f"lag.most is {self.most}; the simulator keeps {MAX_LAG} old versions: give 0 to {MAX_LAG}"
            )

    def __str__(self) -> str:
        return f"{self.kind} {self.most}" + ("" if self.mixed else ", one version each")

    def draw(self, rng: Random) -> int:
        return _DRAWS[self.kind](rng, self.most)

    def draw_versions(self, rng: Random, current: int, turns: int) -> list[int]:
        """The version of each turn, never falling. The first is `draw` versions behind `current` (or 0, where there are
        not so many yet); each later one is anywhere between the one before and `current`."""
        versions = [max(0, current - self.draw(rng))]
        for _ in range(turns - 1):
            versions.append(rng.randint(versions[-1], current) if self.mixed else versions[-1])
        return versions


def _draw_constant(_: Random, most: int) -> int:
    return most


def _draw_uniform(rng: Random, most: int) -> int:
    return rng.randint(0, most)


def _draw_geometric(rng: Random, most: int) -> int:
    stop = 1.0 / (1.0 + most / 4)
    while True:
        lag = 0
        while rng.random() >= stop:
            lag += 1
        if lag <= most:
            return lag


_DRAWS: dict[str, Callable[[Random, int], int]] = {
    "constant": _draw_constant,
    "uniform": _draw_uniform,
    "geometric": _draw_geometric,
}
