"""The learning loop.

::

    trajectories.v1 ─► consume ─► admit ─► buffer ─► batch ─► update ─► checkpoint ─► ledger ─► commit ─► publish
                          │          │                          │            │          (SQL)    (offsets)   │
                  dead letters   drops (SQL)        value, then policy    weights,                    candidate in the
                                                                          ids, offsets                  registry

One thread, one batch at a time. What makes a trajectory train exactly once in effect:

- the checkpoint holds the weights *and* the offsets they stand for; after a crash both go back together;
- the ids of its last update are in it too, so the marks in SQL are completed from it before anything else;
- an id that SQL marks as trained or dropped is never taken again, wherever the log sends it from; one that was marked
  while it waited here, because its user had it erased, is let go of, and an update that holds such a one is undone;
- nothing is consumed before everything behind the last update is done: an update whose checkpoint a full disk refuses
  is kept in memory, and SQL and the log hear of it once the checkpoint is there. Killed meanwhile, it was never made.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from sqlalchemy.exc import SQLAlchemyError

from feedback.schemas import Trajectory
from online_rl.admission import AdmissionRules, find_refusal
from online_rl.buffer import Buffer
from online_rl.candidates import Candidates
from online_rl.checkpoint import CheckpointError, CheckpointNotSaved, Checkpoints, DriftEvent, LearnerState
from online_rl.cohorts import find_cohorts, find_prompt
from online_rl.divergence import GuardState, find_excess, follow, has_diverged
from online_rl.drift import DriftMonitor
from online_rl.drift_events import Recovery, Shift
from online_rl.drop_reasons import Reason
from online_rl.intake import BuryMessage, Intake, TrajectorySource
from online_rl.ledger import Ledger
from online_rl.publish import Publisher
from online_rl.reaction import Reaction
from online_rl.registry import Registry
from online_rl.responder import Responder
from online_rl.settings import LearnerSettings, ResponseSettings
from online_rl.trainer import Counters, Trainer
from online_rl.update_errors import UpdateFailed, UpdateUnwanted

logger = logging.getLogger(__name__)


class LearnerLoop:
    """`round` does what there is to do. Whatever fails in it can be tried again by calling it again."""

    def __init__(
        self,
        *,
        source: TrajectorySource,
        trainer: Trainer,
        publisher: Publisher,
        registry: Registry,
        ledger: Ledger,
        checkpoints: Checkpoints,
        drift: DriftMonitor,
        bury: BuryMessage,
        settings: LearnerSettings,
        response: ResponseSettings,
        restored: LearnerState | None = None,
        pretrained_value: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._trainer = trainer
        self._publisher = publisher
        self._registry = registry
        self._ledger = ledger
        self._checkpoints = checkpoints
        self._drift = drift
        self._settings = settings
        self._responder = Responder(
            trainer,
            drift,
            response,
            value_updates=settings.value_updates,
            shift=None if restored is None else restored.shift,
            reaction=None if restored is None else restored.reaction,
        )
        self._clock = clock
        self._buffer = Buffer(
            batch_size=settings.batch_size,
            min_batch=settings.min_batch,
            batch_seconds=settings.batch_seconds,
            group_seconds=settings.group_seconds if trainer.objective.needs.groups else None,
            user_cap=settings.user_cap,
        )
        self._rules = AdmissionRules(
            max_staleness=settings.max_staleness,
            max_tokens=settings.max_tokens,
            vocabulary=trainer.policy.vocabulary,
            objective=trainer.objective.name,
            needs=trainer.objective.needs,
            train_greedy=settings.train_greedy,
            train_structured=settings.train_structured,
        )
        self._candidates = Candidates(
            publisher,
            registry,
            settings,
            published_update=0 if restored is None else restored.published_update,
            clock=clock,
        )
        self._pretrained_value = pretrained_value
        self._guard = GuardState() if restored is None else restored.guard
        self.rolled_back = ""
        """Since this process started: when the divergence guard last went back, to where, and why."""
        same_log = restored is not None and restored.log_identity == source.identity
        self._intake = Intake(
            source,
            self._buffer,
            ledger,
            bury,
            batch_size=settings.batch_size,
            offsets=restored.offsets if restored is not None and same_log else {},
            clock=clock,
        )
        self._origin_is_saved = False
        self._unsaved: LearnerState | None = None
        """Of the weights in training, which the disk has not got yet."""
        self._unrecorded = restored
        self._unpublished: Sequence[Trajectory] | None = None
        """The batch of an update whose version and offsets are not out yet."""
        self._due_drops: dict[str, str] = {}

    @property
    def updates(self) -> int:
        return self._trainer.counters.updates

    @property
    def waiting(self) -> int:
        """Trajectories in the buffer."""
        return len(self._buffer)

    def waiting_offsets(self) -> dict[int, int]:
        """Partition → offset of the first trajectory that waits in the buffer; without those where none does."""
        return self._buffer.safe_offsets({}, self._intake.identity)

    def round(self) -> bool:
        """Do one thing after the other; True when an update was made.

        Raises what the log or the database raises, and CheckpointNotSaved.
        """
        self._settle()
        if self._registry.frozen():
            return False
        self._intake.consume()
        version = self._registry.standing()
        self._save_origin(version)
        batch = self._next_batch(version)
        if batch is None:
            return False
        batch = self._train(batch, version)
        if not batch:
            return False
        self._unpublished = batch
        self._settle()
        return True

    def _train(self, batch: list[Trajectory], version: int) -> list[Trajectory]:
        """Make an update of `batch`, without those that are erased meanwhile; returns what it was made of."""
        while batch:
            try:
                self._update(batch, version)
            except UpdateUnwanted:
                erased = self._erased(batch)
                logger.warning("the update is undone: %d of its trajectories were erased meanwhile", len(erased))
                batch = [trajectory for trajectory in batch if trajectory.trajectory_id not in erased]
            else:
                break
        return batch

    def _erased(self, batch: Sequence[Trajectory]) -> set[str]:
        """Those of a batch that nobody wants any more. With the database away nothing is erased, either."""
        try:
            return self._ledger.handled([trajectory.trajectory_id for trajectory in batch])
        except SQLAlchemyError as error:
            logger.warning("the database is away: %s", type(error).__name__)
            return set()

    def _settle(self) -> None:
        """Do what is left to do behind the last update. What fails is done by the next call, and nothing twice."""
        if self._unsaved is not None:
            try:
                self._checkpoints.save(self._unsaved, self._trainer.tensors())
            except OSError as error:
                raise CheckpointNotSaved(
                    f"the checkpoint of update {self._unsaved.update} cannot be written; it is kept and tried again, "
                    f"make room in data_dir: {error}"
                ) from error
            self._unrecorded, self._unsaved = self._unsaved, None
        self._record()
        if self._unpublished is not None:
            self._candidates.publish(self.updates, self._trainer.counters.kl_to_base, self._unpublished)
            self._intake.commit()
            self._unpublished = None

    def _save_origin(self, version: int) -> None:
        """Before the first update: what the guard goes back to should the first ones diverge."""
        if self.updates == 0 and len(self._buffer) and not self._origin_is_saved:
            self._origin_is_saved = True
            self._stage(version, {})
            self._settle()

    def _next_batch(self, version: int) -> list[Trajectory] | None:
        """Let go of what was erased, drop what may not train (any more), and take a batch where one is due."""
        if len(self._buffer):
            self._buffer.remove(self._ledger.handled(list(self._buffer.ids)), self._clock())
        rejected = self._registry.rejected() if len(self._buffer) else frozenset[int]()
        for trajectory in self._buffer:
            refusal = find_refusal(
                trajectory,
                self._rules,
                current_version=version,
                rejected_versions=rejected,
                rated_since=self._responder.rated_since,
            )
            if refusal is not None:
                logger.info("trajectory %s is dropped: %s", trajectory.trajectory_id, refusal.detail)
                self._due_drops[trajectory.trajectory_id] = refusal.reason
        self._buffer.remove(self._due_drops.keys(), self._clock())
        self._record()
        return self._buffer.take(self._clock())

    def _update(self, batch: Sequence[Trajectory], version: int) -> None:
        """Train; where the update failed, the batch is dropped."""
        measured = self.updates
        metrics: dict[str, float] | None = None
        try:
            metrics = self._trainer.update(
                batch,
                current_version=version,
                value_updates=self._responder.value_updates,
                unwanted=lambda: bool(self._erased(batch)),
            )
            excess = find_excess(metrics, self._settings)
        except UpdateFailed as error:
            excess = str(error)
        self._guard = follow(self._guard, excess, measured)
        if (
            excess is not None
            and has_diverged(self._guard, self._settings)
            and self._roll_back(excess, measured, batch, version)
        ):
            return
        if metrics is None:
            logger.error("the update was undone, its %d trajectories are dropped: %s", len(batch), excess)
            self._due_drops |= {trajectory.trajectory_id: Reason.UPDATE_FAILED for trajectory in batch}
            return
        if excess is not None:
            logger.warning("update %d is out of bounds (%d in a row): %s", self.updates, self._guard.streak, excess)
        found = [
            event
            for trajectory, residual in zip(batch, self._trainer.residuals, strict=True)
            for event in self._drift.observe(
                trajectory.reward,
                residual,
                trajectory.rated_at,
                metrics=trajectory.metrics,
                cohorts=find_cohorts(trajectory),
                prompt=find_prompt(trajectory),
            )
        ]
        events = [*found, *self._react(found)]
        self._stage(version, metrics | {"guard/streak": float(self._guard.streak)}, batch, events)

    def _react(self, found: Sequence[Shift | Recovery]) -> list[Reaction]:
        changed = self._responder.react(found, self.updates)
        if self._responder.reaction in changed:
            # What is served now was made for the old taste.
            self._candidates.due_at_once = True
        return changed

    def _roll_back(self, excess: str, measured: int, batch: Sequence[Trajectory], version: int) -> bool:
        """Go on from the last good checkpoint, as an update of its own that trained on nothing; False if it is damaged.

        The count of updates goes on, so no later checkpoint and no row in SQL is taken for an earlier one. `batch` is
        dropped, and what the updates in between trained on stays trained: nothing comes again.
        """
        good, streak = self._guard.good, self._guard.streak
        self._guard = GuardState(good=good)
        assert good is not None
        try:
            state, tensors = self._checkpoints.read(good)
        except CheckpointError as error:
            logger.error("training has diverged (%s), and there is no way back: %s", excess, error)
            return False
        made = self._trainer.counters.updates = measured + 1
        self._trainer.load(tensors)
        if state.objective == self._settings.objective:
            self._trainer.load_baseline(state.baseline)
        self._trainer.counters.kl_to_base = state.kl_to_base
        self.rolled_back = f"update {made} went back to the weights of update {good}: {excess}"
        logger.error("%s (%d in a row); %d trajectories are dropped", self.rolled_back, streak, len(batch))
        metrics = {"guard/streak": float(streak), "guard/rolled_back_to": float(good)}
        self._stage(version, metrics, dropped={trajectory.trajectory_id: Reason.DIVERGED for trajectory in batch})
        # What was published since is worse than what is there now.
        self._candidates.due_at_once = True
        return True

    def _stage(
        self,
        version: int,
        metrics: dict[str, float],
        batch: Sequence[Trajectory] = (),
        events: Sequence[DriftEvent] = (),
        dropped: Mapping[str, str] | None = None,
    ) -> None:
        """Have the weights in training saved with all that belongs to them; update 0 stands at the log's beginning."""
        counters = self._trainer.counters
        self._unsaved = LearnerState(
            update=counters.updates,
            value_updates=counters.value_updates,
            entropy_skips=counters.entropy_skips,
            schedule_start=counters.schedule_start,
            kl_to_base=counters.kl_to_base,
            version=version,
            published_update=self._candidates.published_update,
            offsets=self._intake.offsets() if counters.updates else {},
            log_identity=self._intake.identity,
            trained_ids=tuple(trajectory.trajectory_id for trajectory in batch),
            dropped=dict(dropped or {}),
            metrics=metrics,
            trained_at=self._clock(),
            random_state=bytes(torch.get_rng_state().numpy()).hex(),
            base_sha256=self._publisher.base_sha256,
            objective=self._settings.objective,
            baseline=self._trainer.baseline_state(),
            pretrained_value=self._pretrained_value,
            guard=self._guard,
            drift=self._drift.state,
            drift_events=tuple(events),
            shift=self._responder.shift,
            reaction=self._responder.reaction,
        )

    def _record(self) -> None:
        """Bring SQL up to date with the newest checkpoint. Repeated after a crash or an outage, it changes nothing."""
        self._ledger.record_drops(self._due_drops, self._clock())
        self._due_drops = {}
        state = self._unrecorded
        if state is not None and state.update:
            self._ledger.record_drops(state.dropped, state.trained_at)
            self._ledger.record_update(state.update, state.version, state.trained_ids, state.metrics, state.trained_at)
            for event in state.drift_events:
                logger.info("drift: %s", event)
                self._ledger.record_drift(event, version=state.version, update=state.update)
        self._unrecorded = None


def restore_counters(state: LearnerState) -> Counters:
    return Counters(
        updates=state.update,
        value_updates=state.value_updates,
        entropy_skips=state.entropy_skips,
        schedule_start=state.schedule_start,
        kl_to_base=state.kl_to_base,
    )
