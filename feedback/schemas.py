"""What the feedback service takes in (`FeedbackIn`) and puts out (`Trajectory`, the single-trajectory event)."""

from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from serving.schemas import FiniteFloat, VersionSpan, check_spans, check_text

TRAJECTORIES_TOPIC = "trajectories.v1"
FEEDBACK_TOPIC = "feedback.v1"


class Message(Protocol):
    """One message of the log, of any topic."""

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


class Trajectory(BaseModel):
    """One flat token sequence of one episode and its reward: the event on ``trajectories.v1``.

    ``L = len(token_ids)``; ``N = sum(action_mask)`` is the number of action tokens. What belongs to action tokens
    only (`behavior_logprobs`, `spans`) has length N, so that nothing can be padded with a false zero.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    schema_version: Literal[1] = 1
    trajectory_id: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(check_text)]
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


class FeedbackEvent(BaseModel):
    """One feedback as it was stored, and again once it is retracted: the event on ``feedback.v1``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    schema_version: Literal[1] = 1
    feedback_id: str
    inference_id: str | None
    """The bare id of the answer that it is about; None where it is about an episode."""
    episode_id: str | None
    choice_index: int
    metric_name: str
    value: FiniteFloat
    """On its metric: true is 1."""
    user_id: str | None
    comment: str | None
    tags: dict[str, str]
    received_at: FiniteFloat
    """Unix seconds, as is `retracted_at`."""
    retracted_at: FiniteFloat | None


class FeedbackIn(BaseModel):
    """One signal about one answer, as a client posts it to ``POST /v1/feedback``."""

    # Strict, so that `true` is no index of a choice.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

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


class FeedbackError(BaseModel):
    """Why a feedback was refused, in the shape of OpenAI's errors. `param` is the field."""

    message: str
    type: str
    param: str | None = None
    code: str


class ErrorAnswer(BaseModel):
    """Every answer that is not 2xx, in the shape of OpenAI's errors."""

    error: FeedbackError


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI describes these answers, and those that any route may give: for want of a key or of a database."""
    return {status: {"model": ErrorAnswer} for status in sorted({401, 403, 503, *statuses})}


class FeedbackResult(BaseModel):
    """What became of one item of ``POST /v1/feedback/batch``: `status` is what it would have got alone."""

    status: int
    feedback_id: str | None = None
    error: FeedbackError | None = None


class FeedbackBatch(BaseModel):
    """The answer to ``POST /v1/feedback/batch``: one result an item, in order."""

    results: list[FeedbackResult]


class FeedbackRetracted(BaseModel):
    """The answer to ``DELETE /v1/feedback/{feedback_id}``."""

    feedback_id: str
    effect: Literal["removed", "too_late"]
    """`too_late`: it is part of a trajectory that was released; it stays on record as retracted."""


class FeedbackRecord(BaseModel):
    """One stored feedback, as ``GET /v1/inferences/{id}`` shows it."""

    feedback_id: str
    metric_name: str
    value: float
    choice_index: int
    user: str | None
    comment: str | None
    tags: dict[str, str]
    received_at: float
    retracted_at: float | None
    status: str
    """`new`, `waiting` (its generation is not stored yet), `joined`, `used` (in a released trajectory), `late`,
    `unused` (the generation is not for training), `refused`, `orphaned` (the generation never came), `quarantined`
    (its value is an outlier) and then `vetted` (an operator released it)."""
    erased_at: float | None
    """Since when comment, tags and user are gone."""


class GenerationRecord(BaseModel):
    """One choice of an inference: what was asked, what was sampled, and what became of it."""

    prompt_index: int
    turn: int
    choice: int
    choice_index: int
    episode_id: str
    model: str
    user_id: str | None
    prompt_token_ids: list[int]
    token_ids: list[int]
    behavior_logprobs: list[float]
    spans: list[VersionSpan]
    text: str
    finish_reason: str | None
    created_at: float
    finished_at: float
    state: str
    drop_reason: str | None
    trajectory_id: str | None
    erased_at: float | None
    """Since when tokens, text and user are gone."""


class TrajectoryRecord(BaseModel):
    """A trajectory that an inference went into."""

    trajectory_id: str
    reward: float
    metrics: dict[str, float]
    tokens: int
    action_tokens: int
    oldest_version: int | None
    released_at: float
    erased_at: float | None


class InferenceRecord(BaseModel):
    """The answer to ``GET /v1/inferences/{id}``."""

    inference_id: str
    versions: list[int]
    """Policy versions that sampled any of its tokens."""
    generations: list[GenerationRecord]
    feedback: list[FeedbackRecord]
    trajectories: list[TrajectoryRecord]
