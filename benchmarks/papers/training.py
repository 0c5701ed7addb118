"""One run: a policy, a task, a lag, an objective, a seed ─► the rewards of every update.

The learner is the service's own `Trainer`; only where the trajectories come from is simulated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from benchmarks.papers.lags import Lag
from benchmarks.papers.policy import make_trainer, prepare_base
from benchmarks.papers.simulator import Simulator
from benchmarks.papers.tasks import TASKS, Style, Task, make_style_task
from feedback.schemas import Trajectory
from online_rl.drift import DriftMonitor
from online_rl.drift_events import Recovery, Shift
from online_rl.objectives import OBJECTIVES
from online_rl.pretraining import pretrain
from online_rl.reaction import Reaction
from online_rl.responder import Responder
from online_rl.settings import DriftSettings, LearnerSettings, ResponseSettings
from online_rl.trainer import Trainer
from online_rl.update_errors import UpdateFailed

BATCH = 16
"""Trajectories of one update."""
GROUP = 4
"""Answers to one question, for the objectives that compare within a group."""
LAG = Lag("uniform", 24)
"""Unless a set-up says otherwise."""
START = 256
"""Trajectories of the warm policy that the start reward is measured on."""
SETTINGS: dict[str, object] = {
    "batch_size": BATCH,
    "learning_rate": 1e-3,
    "value_learning_rate": 1e-3,
    "schedule": "constant",
    "value_model": "lora",
    "kl_coefficient": 0.0,
    "kl_free": 0.0,
    "lora_rank": 16,
    "lora_alpha": 32.0,
    "micro_batch_tokens": 4096,
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
}
"""The learner's settings of every run, unless a set-up says otherwise."""

Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a run depends on, but its seed and the code."""

    objective: str
    task: str = "lookup"
    lag: Lag = LAG
    updates: int = 1000
    settings: Mapping[str, object] = field(default_factory=dict)
    """Changes to `SETTINGS`."""
    pretraining: int = 0
    """Trajectories of the warm policy that the value model learns from before the first update."""
    tastes: tuple[Style, ...] = ()
    """Preferred styles of the task `styles`, for equally many updates each, one after the other."""
    response: bool | None = None
    """Whether shifts of taste are reacted to, with the service's own settings; None: they are not even looked for."""

    @property
    def group_size(self) -> int:
        """Answers to each question. Raises ValueError where the learner does not know the objective."""
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective {self.objective!r} is not one of {', '.join(OBJECTIVES)}")
        return GROUP if OBJECTIVES[self.objective].needs.groups else 1

    def find_taste(self, update: int) -> int:
        """Index of the taste that the users have at `update`, counted from 0."""
        return update * len(self.tastes) // self.updates


@dataclass(slots=True)
class Course:
    """What happened in a run."""

    start_reward: float
    """Mean reward of the warm policy."""
    rewards: list[list[float]] = field(default_factory=list)
    """Of every trajectory, by update."""
    metrics: list[dict[str, float]] = field(default_factory=list)
    """The trainer's figures, by update; empty where the update failed."""
    failed_updates: int = 0
    """Updates that the trainer refused because a loss or gradient was not finite."""
    shifts: list[Shift] = field(default_factory=list)
    """Those of taste in all traffic that the service's detector found, where it looked."""
    reactions: list[Reaction] = field(default_factory=list)
    """As they began."""

    @property
    def mean_rewards(self) -> list[float]:
        return [sum(rewards) / len(rewards) for rewards in self.rewards]

    def average(self, name: str) -> float | None:
        """Mean of one of the trainer's figures over the updates that have it."""
        found = [metrics[name] for metrics in self.metrics if name in metrics]
        return sum(found) / len(found) if found else None


Watch = Callable[[Trainer, Sequence[Trajectory], int], None]
"""Called with the trainer, the batch and the current version before each update."""


def make_settings(setup: Setup, seed: int) -> LearnerSettings:
    """Raises ValueError where this version of the learner lacks the objective or a setting, naming it."""
    values: dict[str, Any] = {**SETTINGS, **setup.settings, "objective": setup.objective, "seed": seed}
    try:
        return LearnerSettings.model_validate(values)
    except ValidationError as error:
        parts = "; ".join(f"learner.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError(f"set-up {setup.objective!r} cannot run on this learner: {parts}") from error


def train(setup: Setup, seed: int, tick: Tick = lambda: None, watch: Watch | None = None) -> Course:
    """Run `setup`; the same seed gives the same course. `tick` is called after every update."""
    task = TASKS[setup.task]
    trainer = make_trainer(prepare_base(task), make_settings(setup, seed))
    simulator = Simulator(trainer.policy, task.max_length, seed)
    start = simulator.collect(_task_at(setup, 0), START, Lag("constant", 0))
    course = Course(start_reward=sum(trajectory.reward for trajectory in start) / len(start))
    if setup.pretraining:
        if trainer.value is None:
            raise ValueError(f"pretraining: objective {setup.objective} has no value model; set it to 0")
        fixed = simulator.collect(task, setup.pretraining, Lag("constant", 0))
        pretrain(trainer.value.model, fixed, trainer.settings, device=trainer.policy.device)
        trainer.value.is_ready = True
    watcher = None if setup.response is None else Watcher(trainer, reacts=setup.response)
    for update in range(setup.updates):
        batch = simulator.collect(_task_at(setup, update), BATCH, setup.lag, setup.group_size)
        if watch is not None:
            watch(trainer, batch, simulator.version)
        try:
            value_updates = None if watcher is None else watcher.responder.value_updates
            course.metrics.append(trainer.update(batch, current_version=simulator.version, value_updates=value_updates))
            if watcher is not None:
                watcher.observe(batch, course)
        except UpdateFailed:
            course.failed_updates += 1
            course.metrics.append({})
        course.rewards.append([trajectory.reward for trajectory in batch])
        simulator.publish()
        tick()
    return course


class Watcher:
    """Between the updates, as in the service: the detector looks for shifts, and they are reacted to."""

    def __init__(self, trainer: Trainer, *, reacts: bool) -> None:
        self._trainer = trainer
        self._drift = DriftMonitor(DriftSettings())
        self.responder = Responder(
            trainer,
            self._drift,
            ResponseSettings(enabled=reacts),
            value_updates=trainer.settings.value_updates,
        )

    def observe(self, batch: Sequence[Trajectory], course: Course) -> None:
        """The batch that the trainer has just learned from; what it reveals is added to `course`."""
        found: list[Shift | Recovery] = [
            event
            for trajectory, residual in zip(batch, self._trainer.residuals, strict=True)
            for event in self._drift.observe(trajectory.reward, residual, trajectory.rated_at)
        ]
        course.shifts += [event for event in found if isinstance(event, Shift) and event.is_taste_of_all]
        reactions = self.responder.react(found, self._trainer.counters.updates)
        course.reactions += [reaction for reaction in reactions if not reaction.ended]


def _task_at(setup: Setup, update: int) -> Task:
    if not setup.tastes:
        return TASKS[setup.task]
    return make_style_task(setup.tastes[setup.find_taste(update)])
