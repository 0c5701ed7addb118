"""How many conversations the users may have open, so that nothing they rate goes to waste.

Customers who rate faster than the learner learns would only grow a backlog whose end is too stale to train on. So the
users watch what the service says of itself and keep about two batches of rated answers in front of the learner: one
being trained on, one being made.
"""

from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict


class ServiceStatus(BaseModel):
    """The part of ``GET /admin/status`` that the demo reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    live_version: int | None = None
    versions_published: int = 0
    feedback_accepted: int = 0
    trajectories_released: int = 0
    trajectories_trained: int = 0
    trajectories_dropped: dict[str, int] = {}
    backlog: int = 0
    drift_events: int = 0
    updates: int = 0
    kl_to_base: float | None = None
    mismatch_mean: float | None = None
    mismatch_kl: float | None = None

    @property
    def consumed(self) -> int:
        """Trajectories that the learner is done with."""
        return self.trajectories_trained + sum(self.trajectories_dropped.values())


@dataclass
class Pace:
    """Counts of one run. `outstanding` trajectories are asked for or rated, and not yet consumed by the learner."""

    limit: int
    consumed_before: int = 0
    """What the learner had consumed when the run began."""
    rated: int = 0
    in_flight: int = 0
    status: ServiceStatus = field(default_factory=ServiceStatus)

    @property
    def outstanding(self) -> int:
        consumed = max(0, self.status.consumed - self.consumed_before)
        return self.in_flight + max(0, self.rated - consumed)

    @property
    def may_ask(self) -> bool:
        return self.outstanding < self.limit
