"""Every topic that the service writes, and what its messages are.

The number at the end of a topic's name is that of its messages' schema: messages that an old reader would refuse go to
a new topic.
"""

from dataclasses import dataclass

from pydantic import BaseModel

from feedback.dead_letters import DLQ_SUFFIX, ID_PREFIX
from feedback.schemas import FEEDBACK_TOPIC, TRAJECTORIES_TOPIC, FeedbackEvent, Trajectory
from serving.schemas import GENERATIONS_TOPIC, Generation


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, without the prefix that `kafka.topic_prefix` puts before it."""

    name: str
    title: str
    """Of its messages."""
    key: str
    """The regular expression that keys match."""
    about_key: str
    payload: type[BaseModel] | None
    """What a value is as JSON; None where it is bytes of any kind."""
    is_read: bool = False
    """Whether a part of the service reads it, too."""


def _dead_letters(topic: str, title: str) -> Topic:
    return Topic(topic + DLQ_SUFFIX, title, f"^{ID_PREFIX}[0-9a-f]{{32}}$", "the id of the dead letter", None)


TOPICS = (
    Topic(
        GENERATIONS_TOPIC,
        "generation",
        r"^.+/\d+/\d+/\d+$",
        "inference_id/prompt_index/turn/choice",
        Generation,
        is_read=True,
    ),
    Topic(TRAJECTORIES_TOPIC, "trajectory", "^traj_[0-9a-f]{32}$", "trajectory_id", Trajectory, is_read=True),
    Topic(FEEDBACK_TOPIC, "feedback", "^fb_[0-9a-f]{32}$", "feedback_id", FeedbackEvent),
    _dead_letters(GENERATIONS_TOPIC, "unreadable_generation"),
    _dead_letters(TRAJECTORIES_TOPIC, "unreadable_trajectory"),
)
