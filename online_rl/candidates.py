"""When the weights in training become a version: a candidate in the registry, which the deployer delivers."""

import logging
import time
from collections.abc import Callable, Sequence

from feedback.schemas import Trajectory
from online_rl.durable_files import discard_folder
from online_rl.publish import Publisher
from online_rl.registry import Registry
from online_rl.settings import LearnerSettings

logger = logging.getLogger(__name__)


class Candidates:
    """Every `learner.publish_every` updates one, and one at once where what is served should be no longer."""

    def __init__(
        self,
        publisher: Publisher,
        registry: Registry,
        settings: LearnerSettings,
        *,
        published_update: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._publisher = publisher
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self.published_update = published_update
        """The update whose weights the newest version holds."""
        self.due_at_once = False
        """Whether the next one is due whatever the number of updates."""

    def publish(self, update: int, kl: float, recent: Sequence[Trajectory]) -> None:
        """Where one is due, write the weights of `update` as a candidate; one too far from the base is rejected.

        `kl` is how far, in nats a token; probes are chosen among the `recent` trajectories. Raises what the database
        raises, and may then be called again. A disk that is full is not an error: the next update tries again.
        """
        if not self.due_at_once and update - self.published_update < self._settings.publish_every:
            return
        version, parent = self._registry.next_version(), self._registry.standing()
        metrics = {"kl_to_base": kl, "update": float(update)}
        if kl > self._settings.kl_budget:
            reason = f"{kl:.2f} nats a token from the base model, learner.kl_budget is {self._settings.kl_budget}"
            logger.warning("version %d is not published: %s", version, reason)
            self._registry.add_rejected(version, parent, str(self._publisher.folder(version)), metrics, reason)
            self._done(update)
            return
        started = time.perf_counter()
        try:
            folder = self._publisher.publish(version, parent, update=update, recent=recent, created_at=self._clock())
        except OSError as error:
            discard_folder(self._publisher.folder(version))
            logger.error("version %d could not be written, the next update tries again: %s", version, error)
            return
        metrics["publish_seconds"] = time.perf_counter() - started
        self._registry.add_candidate(version, parent, str(folder), metrics)
        self._done(update)
        logger.info("version %d is published (update %d)", version, update)

    def _done(self, update: int) -> None:
        self.published_update = update
        self.due_at_once = False
