"""What the feedback service takes in (`FeedbackIn`) and puts out (`Trajectory`, the single-trajectory event)."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serving.schemas import FiniteFloat, VersionSpan, check_spans

TRAJECTORIES_TOPIC = "trajectories.v1"
FEEDBACK_TOPIC = "feedback.v1"


class Trajectory(BaseModel):
    """One flat token sequence of one episode and its reward: the event on ``trajectories.v1``.

    ``L = len(token_ids)``; ``N = sum(action_mask)`` is the number of action tokens. What belongs to action tokens
    only (`behavior_logprobs`, `spans`) has length N, so that nothing can be padded with a false zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    trajectory_id: str
    episode_id: str
    inference_ids: tuple[str, ...]
    token_ids: tuple[int, ...]
    action_mask: tuple[Literal[0, 1], ...]
    behavior_logprobs: tuple[FiniteFloat, ...] | None
    """None where the transport carries none: only current-policy objectives can train on such a trajectory."""
    spans: tuple[VersionSpan, ...] | None
    """Version spans over action-token indices 0..N; None where the transport carries no versions."""
    reward: FiniteFloat
    metrics: dict[str, FiniteFloat] = {}
    group_id: str | None = None
    group_size: Annotated[int, Field(ge=1)] = 1
    greedy: bool = False
    structured: bool = False
    api_key_id: str = "anonymous"
    user_id: str | None = None
    tags: dict[str, str] = {}
    generated_at: FiniteFloat
    rated_at: FiniteFloat
    released_at: FiniteFloat

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        actions = sum(self.action_mask)
        if len(self.action_mask) != len(self.token_ids):
            raise ValueError(f"action_mask has {len(self.action_mask)} values for {len(self.token_ids)} token_ids")
        if actions == 0:
            raise ValueError("action_mask marks no sampled token; there is nothing to train on")
        if self.action_mask[0] == 1:
            raise ValueError("action_mask marks the first token, which has no context to be sampled from")
        if self.behavior_logprobs is not None and len(self.behavior_logprobs) != actions:
            raise ValueError(f"behavior_logprobs has {len(self.behavior_logprobs)} values for {actions} action tokens")
        if self.spans is not None:
            check_spans(self.spans, actions)
        return self

    @property
    def oldest_version(self) -> int | None:
        return None if self.spans is None else min(span.version for span in self.spans)


class FeedbackIn(BaseModel):
    """One signal about one answer, as a client posts it to ``POST /v1/feedback``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inference_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The `id` of the response, or the header ``x-inference-id``."""
    episode_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    choice_index: Annotated[int, Field(ge=0, le=1023)] = 0
    metric_name: Annotated[str, Field(min_length=1, max_length=128)] = "reward"
    value: bool | FiniteFloat | str
    user: Annotated[str, Field(max_length=256)] | None = None
    idempotency_key: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    comment: Annotated[str, Field(max_length=16_384)] | None = None
    tags: dict[str, str] = {}
    dryrun: bool = False

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.inference_id is None) == (self.episode_id is None):
            raise ValueError("give exactly one of inference_id and episode_id")
        return self


class FeedbackAccepted(BaseModel):
    """The answer to an accepted feedback (202), or to the same one again (200)."""

    feedback_id: str
