"""Generations as rows: what the engine sampled goes in and comes out unchanged."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from feedback.assembly import unusable_reason
from feedback.joining import choice_index, due_at, episode_of
from feedback.packing import pack_logprobs, pack_tokens, unpack_logprobs, unpack_tokens
from feedback.settings import FeedbackSettings
from serving.schemas import Generation

_COLUMNS = {"inference_id", "prompt_index", "turn", "choice", "api_key_id", "user_id", "created_at", "finished_at"}
_PACKED = {"prompt_token_ids", "token_ids", "behavior_logprobs"}


def generation_row(generation: Generation, now: float, settings: FeedbackSettings) -> dict[str, Any]:
    """The row of `feedback.tables.generations`; one that cannot be trained on is dropped from the start."""
    reason = unusable_reason(generation)
    return {
        **generation.model_dump(include=_COLUMNS),
        "choice_index": choice_index(generation),
        "episode_id": episode_of(generation),
        "prompt_token_ids": pack_tokens(generation.prompt_token_ids),
        "token_ids": pack_tokens(generation.token_ids),
        "behavior_logprobs": pack_logprobs(generation.behavior_logprobs),
        "data": generation.model_dump(mode="json", exclude=_COLUMNS | _PACKED),
        "stored_at": now,
        "state": "open" if reason is None else "dropped",
        "drop_reason": reason[:64] if reason else None,
        "due_at": due_at(generation, settings),
    }


def generation_of(row: Row[Any] | Mapping[str, Any]) -> Generation:
    """The generation that was stored as `row` (every column of the table)."""
    columns = row if isinstance(row, Mapping) else row._mapping
    return Generation(
        **columns["data"],
        **{name: columns[name] for name in _COLUMNS},
        prompt_token_ids=unpack_tokens(columns["prompt_token_ids"]),
        token_ids=unpack_tokens(columns["token_ids"]),
        behavior_logprobs=unpack_logprobs(columns["behavior_logprobs"]),
    )
