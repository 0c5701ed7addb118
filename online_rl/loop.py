"""The learning loop.

::

    trajectories.v1 ─► consume ─► admit ─► buffer ─► batch ─► update ─► checkpoint ─► ledger ─► commit ─► publish
                          │          │                          │            │          (SQL)    (offsets)   │
                  dead letters   drops (SQL)        value, then policy    weights,                    candidate in the
                                                                          ids, offsets                  registry

One thread, one batch at a time. What makes a trajectory train exactly once in effect:

- the checkpoint holds the weights *and* the offsets they stand for; after a crash both go back together;
- the ids of its last update are in it too, so the marks in SQL are completed from it before anything else;
- an id that SQL marks as trained or dropped is never taken again, wherever the log sends it from.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from pydantic import ValidationError

from feedback.schemas import Trajectory
from online_rl.admission import AdmissionRules, Reason, find_refusal
from online_rl.buffer import Arrival, Buffer
from online_rl.checkpoint import CheckpointError, Checkpoints, DriftEvent, LearnerState
from online_rl.cohorts import find_cohorts, find_prompt
from online_rl.divergence import GuardState, find_excess, follow, has_diverged
from online_rl.drift import DriftMonitor
from online_rl.drift_events import Recovery, Shift
from online_rl.ledger import Ledger
from online_rl.publish import Publisher
from online_rl.reaction import Reaction, end_reaction, plan_reaction
from online_rl.registry import Registry
from online_rl.settings import LearnerSettings, ResponseSettings
from online_rl.trainer import Counters, Trainer, UpdateFailed

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5


class Record(Protocol):
    """One message of the log."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def value(self) -> bytes: ...


class TrajectorySource(Protocol):
    """The log of trajectories. One that was emptied starts again at offset 0 by itself and changes its `identity`."""

    @property
    def identity(self) -> str: ...
    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]: ...
    def commit(self, offsets: dict[int, int]) -> None: ...


BuryMessage = Callable[[Record, str], None]
"""Keep a message that cannot be handled, with the reason."""


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
        keep_versions: int,
        restored: LearnerState | None = None,
        pretrained_value: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._trainer = trainer
        self._publisher = publisher
        self._registry = registry
        self._ledger = ledger
        self._checkpoints = checkpoints
        self._drift = drift
        self._bury = bury
        self._settings = settings
        self._response = response
        self._shift = None if restored is None else restored.shift
        self._reaction = None if restored is None else restored.reaction
        self._keep_versions = keep_versions
        self._clock = clock
        self._buffer = Buffer(
            batch_size=settings.batch_size,
            min_batch=settings.min_batch,
            batch_seconds=settings.batch_seconds,
            group_seconds=settings.group_seconds if trainer.objective.needs.groups else None,
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
        self._published_update = 0 if restored is None else restored.published_update
        self._publish_at_once = False
        self._pretrained_value = pretrained_value
        self._guard = GuardState() if restored is None else restored.guard
        self.rolled_back = ""
        """Since this process started: when the divergence guard last went back, to where, and why."""
        self._identity = source.identity
        same_log = restored is not None and restored.log_identity == self._identity
        self._read = dict(restored.offsets) if restored is not None and same_log else {}
        self._unrecorded = restored
        self._due_drops: dict[str, str] = {}
        self._in_hand: list[Record] = []

    @property
    def updates(self) -> int:
        return self._trainer.counters.updates

    @property
    def waiting(self) -> int:
        """Trajectories in the buffer."""
        return len(self._buffer)

    def round(self) -> bool:
        """Do one thing after the other; True when an update was made. Raises what the log or the database raises."""
        self._record()
        if self._registry.frozen():
            return False
        self._consume()
        version = self._registry.standing()
        batch = self._next_batch(version)
        if batch is None:
            return False
        self._update(batch, version)
        self._record()
        self._publish(batch)
        self._source.commit(self._buffer.safe_offsets(self._read, self._identity))
        return True

    def _consume(self) -> None:
        """Read new trajectories into the buffer, or drop or bury them."""
        # Members of groups that are not whole yet take no room: the ones they wait for come behind them.
        ready = self._buffer.ready(self._clock())
        room = 4 * self._settings.batch_size - ready
        if not self._in_hand and room > 0:
            # A full batch is there already: look for more, but do not wait for it.
            wait = 0.0 if ready >= self._settings.batch_size else POLL_SECONDS
            self._in_hand = list(self._source.poll(min(room, 256), wait))
        if self._source.identity != self._identity:
            logger.warning("the log of trajectories was emptied; reading it again from the beginning")
            self._identity = self._source.identity
            self._read = {}
        parsed = [(record, self._parse(record)) for record in self._in_hand]
        found = [trajectory for _, trajectory in parsed if trajectory is not None]
        known = self._ledger.handled([trajectory.trajectory_id for trajectory in found]) if found else set()
        for record, trajectory in parsed:
            if trajectory is not None and trajectory.trajectory_id not in known:
                arrival = Arrival(trajectory, record.partition, record.offset, self._identity)
                if trajectory.trajectory_id in self._buffer.ids:
                    self._buffer.relocate(arrival)
                else:
                    self._buffer.add(arrival, self._clock())
            self._read[record.partition] = max(self._read.get(record.partition, 0), record.offset + 1)
        self._in_hand = []

    def _parse(self, record: Record) -> Trajectory | None:
        try:
            return Trajectory.model_validate_json(record.value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "message"
            reason = f"not a trajectory: {field}: {first['msg']}"
            logger.warning("%s/%d@%d is buried: %s", record.topic, record.partition, record.offset, reason)
            self._bury(record, reason)
            return None

    def _next_batch(self, version: int) -> list[Trajectory] | None:
        """Drop what may not train (any more), and take a batch where one is due."""
        rejected = self._registry.rejected() if len(self._buffer) else frozenset[int]()
        reaction = self._reaction
        rated_since = reaction.since if reaction is not None and reaction.drop_older else -math.inf
        for trajectory in self._buffer:
            refusal = find_refusal(
                trajectory,
                self._rules,
                current_version=version,
                rejected_versions=rejected,
                rated_since=rated_since,
            )
            if refusal is not None:
                logger.info("trajectory %s is dropped: %s", trajectory.trajectory_id, refusal.detail)
                self._due_drops[trajectory.trajectory_id] = refusal.reason
        self._buffer.remove(self._due_drops.keys(), self._clock())
        self._record()
        return self._buffer.take(self._clock())

    def _update(self, batch: Sequence[Trajectory], version: int) -> None:
        """Train and write the checkpoint; where the update failed, the batch is dropped."""
        measured = self.updates
        if measured == 0:
            # What the guard goes back to should the first updates diverge.
            self._save(version, {})
        metrics: dict[str, float] | None = None
        try:
            value_updates = None if self._reaction is None else self._reaction.value_updates
            metrics = self._trainer.update(batch, current_version=version, value_updates=value_updates)
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
        self._save(version, metrics | {"guard/streak": float(self._guard.streak)}, batch, events)

    def _react(self, found: Sequence[Shift | Recovery]) -> list[Reaction]:
        """End the reaction that runs, where it is time; begin one where a shift is confirmed and none runs.

        What is not of all traffic, or not of taste, is recorded and neither begins a reaction nor ends one.
        """
        changed: list[Reaction] = []
        recovery: Recovery | None = None
        for event in found:
            if isinstance(event, Shift):
                if event.is_taste_of_all:
                    self._shift = event if self._response.enabled else None
            elif event.is_of_all:
                self._shift = None
                recovery = recovery or event
        if self._reaction is not None and (ended := end_reaction(self._reaction, self.updates, recovery)) is not None:
            self._reaction = None
            changed.append(ended)
        if self._reaction is None and self._shift is not None and (reaction := self._plan(self._shift)) is not None:
            self._reaction, self._shift = reaction, None
            self._trainer.take_back(reaction.kept)
            if reaction.fresh_moments:
                self._trainer.forget_moments()
            # What is served now was made for the old taste.
            self._publish_at_once = True
            changed.append(reaction)
        return changed

    def _plan(self, shift: Shift) -> Reaction | None:
        return plan_reaction(
            shift,
            self._drift.rewards_since_shift,
            self._drift.lowest_reward,
            self.updates,
            self._settings.value_updates,
            self._response,
        )

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
        self._trainer.kl_to_base = state.metrics.get("policy/kl_to_base", 0.0)
        self.rolled_back = f"update {made} went back to the weights of update {good}: {excess}"
        logger.error("%s (%d in a row); %d trajectories are dropped", self.rolled_back, streak, len(batch))
        metrics = {"guard/streak": float(streak), "guard/rolled_back_to": float(good)}
        self._save(version, metrics, dropped={trajectory.trajectory_id: Reason.DIVERGED for trajectory in batch})
        # What was published since is worse than what is there now.
        self._publish_at_once = True
        return True

    def _save(
        self,
        version: int,
        metrics: dict[str, float],
        batch: Sequence[Trajectory] = (),
        events: Sequence[DriftEvent] = (),
        dropped: Mapping[str, str] | None = None,
    ) -> None:
        """Write the checkpoint of the weights in training; update 0 stands at the beginning of the log."""
        counters = self._trainer.counters
        state = LearnerState(
            update=counters.updates,
            value_updates=counters.value_updates,
            entropy_skips=counters.entropy_skips,
            version=version,
            published_update=self._published_update,
            offsets=self._buffer.safe_offsets(self._read, self._identity) if counters.updates else {},
            log_identity=self._identity,
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
            shift=self._shift,
            reaction=self._reaction,
        )
        self._checkpoints.save(state, self._trainer.tensors())
        self._unrecorded = state

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

    def _publish(self, batch: Sequence[Trajectory]) -> None:
        """Every `publish_every` updates, write the weights as a candidate; one too far from the base is rejected."""
        update = self._trainer.counters.updates
        if not self._publish_at_once and update - self._published_update < self._settings.publish_every:
            return
        kl = self._trainer.kl_to_base
        version, parent = self._registry.next_version(), self._registry.standing()
        metrics = {"kl_to_base": kl, "update": float(update)}
        if kl > self._settings.kl_budget:
            reason = f"{kl:.2f} nats a token from the base model, learner.kl_budget is {self._settings.kl_budget}"
            logger.warning("version %d is not published: %s", version, reason)
            self._registry.add_rejected(version, parent, str(self._publisher.folder(version)), metrics, reason)
            self._published_update = update
            self._publish_at_once = False
            return
        started = time.perf_counter()
        try:
            folder = self._publisher.publish(version, parent, update=update, recent=batch, created_at=self._clock())
        except OSError as error:
            logger.error("version %d could not be written, the next update tries again: %s", version, error)
            return
        metrics["publish_seconds"] = time.perf_counter() - started
        self._registry.add_candidate(version, parent, str(folder), metrics)
        self._published_update = update
        self._publish_at_once = False
        logger.info("version %d is published (update %d)", version, update)
        try:
            self._publisher.prune(keep=self._keep_versions, in_use=self._registry.live_or_rising())
        except OSError as error:
            logger.warning("old merged weights could not be removed: %s", error)


def restore_counters(state: LearnerState) -> Counters:
    return Counters(updates=state.update, value_updates=state.value_updates, entropy_skips=state.entropy_skips)
