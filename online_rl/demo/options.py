"""What a demo run was asked to do, and the phases that follow from it."""

from dataclasses import dataclass
from pathlib import Path

from online_rl.demo.styles import STYLES

DEFAULT_PHASES = ("enthusiastic", "question", "concise")
DEFAULT_PER_PHASE = 416
"""Enough for the rarest taste to be learned, which took up to 300 in all trials, and for some to see that it stays."""
HELD_OUT_ANSWERS = 2
"""To each held-out question: fewer make the judge's verdict a matter of luck."""
QUICK_HELD_OUT_ANSWERS = 1
"""A quick run's marks do not ask for the verdict."""
MAX_ANSWERS = 8
QUICK_PHASES = ("enthusiastic",)
QUICK_PER_PHASE = 192


class DemoError(Exception):
    """The demo cannot start or go on. The message says why and what to do."""


@dataclass(frozen=True)
class DemoOptions:
    """The flags of `online-rl demo`; None stands for the default."""

    quick: bool = False
    """One phase of at most 192 trajectories, in a style that the base model shows often enough to move that fast."""
    phases: tuple[str, ...] | None = None
    per_phase: int | None = None
    seed: int = 0
    port: int | None = None
    keep: bool = False
    """Leave the service running at the end."""
    report: Path | None = None
    answers: int = 1
    """Answers to each question, the `n` of the request; all are rated. More than one make a group."""
    learning_rate: float | None = None
    """Of the policy; 0 is the control arm."""
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        """Raises DemoError naming the flag."""
        for name in self.phase_names:
            if name not in STYLES:
                raise DemoError(f"--phases: {name!r} is not a style; choose from {', '.join(STYLES)}")
        if not self.phase_names:
            raise DemoError(f"--phases: name at least one style of {', '.join(STYLES)}")
        if self.trajectories < 32:
            raise DemoError(f"--per-phase: {self.trajectories} is too few; rewards are averaged over 32 trajectories")
        if self.quick and self.trajectories > QUICK_PER_PHASE:
            raise DemoError(f"--per-phase: a quick run has at most {QUICK_PER_PHASE} trajectories")
        if not 1 <= self.answers <= MAX_ANSWERS or self.trajectories % self.answers:
            raise DemoError(
                f"--answers: {self.answers} is not in 1 … {MAX_ANSWERS}, or does not divide the trajectories"
            )
        if self.learning_rate is not None and not 0 <= self.learning_rate < 1:
            raise DemoError(f"--learning-rate: {self.learning_rate} is not in 0 <= rate < 1")

    @property
    def phase_names(self) -> tuple[str, ...]:
        if self.phases is not None:
            return self.phases
        return QUICK_PHASES if self.quick else DEFAULT_PHASES

    @property
    def trajectories(self) -> int:
        """Of each phase."""
        if self.per_phase is not None:
            return self.per_phase
        return QUICK_PER_PHASE if self.quick else DEFAULT_PER_PHASE

    @property
    def held_out_answers(self) -> int:
        """To each held-out question."""
        return QUICK_HELD_OUT_ANSWERS if self.quick else HELD_OUT_ANSWERS

    @property
    def folder(self) -> Path:
        """The service's data folder of this run, of its own so that the demo never touches a real one."""
        return self.data_dir or Path(".online_rl") / f"demo-{self.seed}"
