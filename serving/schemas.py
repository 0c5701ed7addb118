"""What the policy endpoint produces: one `Generation` for each choice that the engine sampled.

A generation is the event on the topic ``generations.v1``. It is complete in itself: whoever reads it needs neither
the tokenizer nor the engine to know exactly which tokens were sampled, how probable they were and by which weights.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

GENERATIONS_TOPIC = "generations.v1"

LARGEST_INTEGER = 2**31 - 1
"""Of an SQL column: PostgreSQL stores no larger number, and refuses to compare with one."""
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=LARGEST_INTEGER)]
"""An index or a version: a whole number that every database stores."""
_ROUTE_PREFIX = re.compile(r"^(?:chatcmpl|cmpl|resp|msg)[-_]")
"""What the engine's routes put in front of the id in the response's `id`."""


def bare_inference_id(text: str) -> str:
    """The id as it is stored, of a response's `id` or of the header ``x-inference-id``; whoever issued it."""
    return _ROUTE_PREFIX.sub("", text.strip(), count=1)


def check_text(text: str) -> str:
    """`text`, unless it is one that not every database can store. Raises ValueError that says why."""
    if "\0" in text:
        raise ValueError("holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a surrogate pair") from None
    return text


class VersionSpan(BaseModel):
    """The action tokens ``start <= index < end`` were sampled by the weights of policy ``version``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(gt=0)]
    version: Count


def check_spans(spans: tuple[VersionSpan, ...], length: int) -> None:
    """Raise ValueError unless `spans` cover ``0..length`` without gap or overlap."""
    position = 0
    for span in spans:
        if span.start != position or span.end <= span.start:
            raise ValueError(f"version spans must be contiguous: span {span.start}..{span.end} after {position}")
        position = span.end
    if position != length:
        raise ValueError(f"version spans cover {position} tokens, the generation has {length}")


class Sampling(BaseModel):
    """The request's own sampling parameters. They never enter the log-probabilities, which are of the raw model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    temperature: FiniteFloat = 1.0
    top_p: FiniteFloat = 1.0
    top_k: int = 0
    max_tokens: int | None = None
    seed: int | None = None
    n: Annotated[int, Field(ge=1)] = 1
    structured: bool = False
    """A grammar or a forced tool call masked the distribution: the log-probabilities are after that mask."""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class Generation(BaseModel):
    """What one choice of one inference sampled. Key: (inference_id, prompt_index, turn, choice)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    schema_version: Literal[1] = 1
    inference_id: str
    """Without the route's prefix (``chatcmpl-`` …): the signed id that `serving.inference_ids` issues."""
    prompt_index: Count = 0
    turn: Count = 0
    choice: Count = 0
    episode_id: str | None = None
    """None: the inference is its own episode. Never a shared placeholder."""
    group_id: str | None = None
    api_key_id: str = "anonymous"
    user_id: str | None = None
    tags: dict[str, str] = {}
    client_request_id: str | None = None
    model: str
    adapter: str | None = None
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[FiniteFloat, ...]
    """One raw log-probability (temperature 1, no truncation) for each sampled token."""
    spans: tuple[VersionSpan, ...]
    sampling: Sampling
    finish_reason: str | None = None
    """``stop``, ``length``, ``abort`` (the client went away), or None where the engine gave none."""
    trainable: bool = True
    untrainable_reason: str | None = None
    text: str = ""
    created_at: FiniteFloat
    """Unix seconds, as are the other times."""
    first_token_at: FiniteFloat | None = None
    finished_at: FiniteFloat

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if len(self.behavior_logprobs) != len(self.token_ids):
            raise ValueError(
                f"behavior_logprobs has {len(self.behavior_logprobs)} values for {len(self.token_ids)} token_ids; "
                "a missing log-probability is never padded"
            )
        check_spans(self.spans, len(self.token_ids))
        return self

    @property
    def key(self) -> str:
        return f"{self.inference_id}/{self.prompt_index}/{self.turn}/{self.choice}"
