"""What ``GET /admin/status`` says: the whole service in one small object."""

from pydantic import BaseModel, ConfigDict

from online_rl.dashboard.alarm import Alarm
from online_rl.dashboard.flow import Flow
from online_rl.dashboard.pace import Pace


class PartStatus(BaseModel):
    """The last that one part said of itself."""

    model_config = ConfigDict(frozen=True)

    state: str
    detail: str
    heartbeat_at: float


class Status(BaseModel):
    """Counts since the database was made; figures of the newest measurement, None where there is none yet."""

    model_config = ConfigDict(frozen=True)

    live_version: int | None
    versions_published: int
    """Registered versions, the base not counted."""
    requests: int
    failed_requests: int
    feedback_accepted: int
    generations_stored: int
    trajectories_released: int
    trajectories_trained: int
    trajectories_dropped: dict[str, int]
    """Reason → number."""
    backlog: int
    """Released, neither trained on nor dropped."""
    drift_events: int
    updates: int
    kl_to_base: float | None
    """Nats a token, of the last update."""
    mismatch_mean: float | None
    mismatch_kl: float | None
    learning_frozen: bool
    learning_frozen_reason: str | None
    reward_recent: float | None
    """Mean of the last 32 rewards."""
    reward_earlier: float | None
    """Mean of the 32 rewards before those."""
    reward_last_minutes: float | None
    """Mean of the rewards of the last five minutes."""
    rewards_last_minutes: int
    feedback_by_status: dict[str, int]
    """`joined`, `waiting`, `late`, `orphaned` … → number."""
    answers_dropped: dict[str, int]
    """Why answers did not become trajectories → number."""
    dead_letters: int = 0
    """Messages that could not be handled, those put back since included."""
    flow: Flow = Flow()
    pace: Pace = Pace()
    parts: dict[str, PartStatus]
    seconds: float
    """Since the service was started."""


class Snapshot(BaseModel):
    """A status and, for each list of the admin routes, a number that changes when the list does."""

    model_config = ConfigDict(frozen=True)

    status: Status
    revisions: dict[str, float]
    alarms: list[Alarm] = []
