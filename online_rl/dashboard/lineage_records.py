"""What the lineage of a version, and of data, is told as. Ids, figures and times; never content."""

from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class UpdateLineage(_Record):
    update: int
    created_at: float
    trajectories: int


class FeedbackLineage(_Record):
    """One feedback that is part of a trajectory's reward."""

    feedback_id: str
    metric_name: str
    value: float
    user_id: str | None
    received_at: float
    retracted_at: float | None


class TrajectoryLineage(_Record):
    """A trajectory with what it was made of and what became of it."""

    trajectory_id: str
    episode_id: str | None
    api_key_id: str | None
    user_id: str | None
    reward: float | None
    oldest_version: int | None
    inference_ids: list[str]
    feedback: list[FeedbackLineage]
    update: int | None
    """The update that it was trained in."""
    dropped: str | None
    """Why it does not train."""
    erased_at: float | None


class UserShare(_Record):
    """How many of the trajectories are one user's: who asked, or whose feedback is part of a reward."""

    user_id: str | None
    trajectories: int


class VersionLineage(_Record):
    """What made one version: since its parent, or (`whole`) since the base model."""

    version: int
    parent: int | None
    state: str
    update: int | None
    """The update whose weights it holds; None where that is not on record, and for the base model."""
    whole: bool
    updates: list[UpdateLineage]
    trajectory_count: int
    users: list[UserShare]
    """Of the trajectories that are listed, most first."""
    trajectories: list[TrajectoryLineage]


class LearnedVersion(_Record):
    """A version whose weights hold an update that was made with the data in question."""

    version: int
    state: str


class DataLineage(_Record):
    """What became of data: the trajectories that it went into, and the versions that learned from them."""

    trajectory_count: int
    trajectories: list[TrajectoryLineage]
    versions: list[LearnedVersion]


def share_by_user(found: Iterable[TrajectoryLineage]) -> list[UserShare]:
    """Most trajectories first."""
    counted = Counter(
        name for one in found for name in {one.user_id, *(said.user_id for said in one.feedback if said.user_id)}
    )
    order = sorted(counted.items(), key=lambda item: (-item[1], item[0] or ""))
    return [UserShare(user_id=name, trajectories=number) for name, number in order]
