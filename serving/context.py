"""What is known about one HTTP request, from its headers to its last token.

`current_request` holds a mutable object: the middleware fills in the headers, the handler hook the body's fields, the
capture the version, and the middleware reads it when the response starts. Tasks that the engine's routes start copy
the context, so all of them see the same object.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from serving.schemas import check_text

MAX_ATTRIBUTE = 256
"""Longest episode id, user id, client request id, tag key or tag value that is kept, in characters."""
MAX_TAGS = 16


ID_RULE = f"1 to {MAX_ATTRIBUTE} printable characters"


class InvalidBody(ValueError):
    """A field of the body that the client must correct."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class InvalidHeader(ValueError):
    """A header that the client must correct. The message names it."""


@dataclass(slots=True)
class RequestContext:
    """One request. Times are Unix seconds."""

    inference_id: str
    created_at: float
    api_key_id: str = "anonymous"
    client_request_id: str | None = None
    episode_id: str | None = None
    group_id: str | None = None
    user_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    train: bool = True
    beam_search: bool = False
    response_id: str | None = None
    """`inference_id` with the route's prefix, as the response's `id` shows it; None until the engine was asked."""
    policy_version: int | None = None
    """Version that sampled the first token; None before it."""
    engine_answered: bool = False
    """The engine has given its first output, or ended without one: more cannot be known when the response starts."""
    engine_failed: bool = False
    """The engine failed after the response had started, so the status code cannot tell."""
    generating: set[str] = field(default_factory=set)
    """The engine's ids of the calls that run now."""
    over: bool = False
    """The response has ended. Calls of the engine may still run, where the client went away."""
    leave_gate: Callable[[], None] | None = None
    """Set while the request counts as running for a swap's drain."""
    holds: list[Callable[[], None]] = field(default_factory=list)
    """Called once when the response is complete: what was held for this request (adapters) is given back."""

    def take_body(self, request: Any) -> None:
        """Note what the request's body says: `user`, `metadata.episode_id`, `metadata.group_id`, its own request id.

        `request` is one of the engine's request objects (chat, completion, response, message). Headers win. Raises
        InvalidBody for an id that could not be kept as it is (cut off, two episodes would become one), and for a text
        that no database could keep.
        """
        extra: Mapping[str, Any] = getattr(request, "model_extra", None) or {}
        metadata = getattr(request, "metadata", None) or extra.get("metadata")
        if isinstance(metadata, Mapping):
            self.episode_id = self.episode_id or _id_in_body(metadata, "episode_id")
            self.group_id = self.group_id or _id_in_body(metadata, "group_id")
            self.user_id = self.user_id or _text_in_body("metadata.user_id", metadata.get("user_id"))
        self.user_id = self.user_id or _text_in_body("user", getattr(request, "user", None))
        if self.client_request_id is None and "request_id" in getattr(request, "model_fields_set", ()):
            self.client_request_id = _text_in_body("request_id", request.request_id)
        self.beam_search = bool(getattr(request, "use_beam_search", False))

    def begin_call(self, request_id: str) -> None:
        """The engine is called under `request_id`."""
        self.generating.add(request_id)

    def end_call(self, request_id: str) -> None:
        """That call has ended. With the last one the request no longer counts as running for a swap's drain."""
        self.generating.discard(request_id)
        self.engine_answered = True
        if not self.generating and self.leave_gate is not None:
            self.leave_gate()
            self.leave_gate = None
        if self.over:
            self.close()

    def close(self) -> None:
        """The response has ended: give back what the request holds, at the latest with its last call of the engine."""
        self.over = True
        if self.generating:
            return
        if self.leave_gate is not None:
            self.leave_gate()
            self.leave_gate = None
        while self.holds:
            self.holds.pop()()


def is_id(text: str) -> bool:
    """Whether `text` can be an episode's or a group's id: short, and of characters that a header can give back."""
    return 0 < len(text) <= MAX_ATTRIBUTE and text.isprintable()


def _id_in_body(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not is_id(value):
        raise InvalidBody(f"metadata.{name}", f"metadata.{name} must be a text of {ID_RULE}")
    return value


def _text_in_body(name: str, value: Any) -> str | None:
    text = _short_text(value)
    try:
        return None if text is None else check_text(text)
    except ValueError as error:
        raise InvalidBody(name, f"{name} {error}; leave it out") from None


def decode_header(value: bytes) -> str:
    """Clients send UTF-8 or Latin-1; an id must come out as the same text that JSON would carry."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _short_text(value: Any) -> str | None:
    return value[:MAX_ATTRIBUTE] if isinstance(value, str) and value else None


def read_headers(context: RequestContext, headers: Mapping[str, str]) -> None:
    """Fill `context` from `headers` (lower-case names). Raises InvalidHeader."""
    context.client_request_id = _short_text(headers.get("x-request-id"))
    context.user_id = _short_text(headers.get("x-user-id"))
    for name in ("x-episode-id", "x-group-id"):
        if name in headers and not is_id(headers[name]):
            raise InvalidHeader(f"{name} must be a text of {ID_RULE}")
    context.episode_id, context.group_id = headers.get("x-episode-id"), headers.get("x-group-id")
    train = headers.get("x-train", "true").strip().lower()
    if train not in ("true", "false"):
        raise InvalidHeader("x-train must be `true` or `false`")
    context.train = train == "true"
    context.tags = parse_tags(headers.get("x-tags", ""))


def parse_tags(text: str) -> dict[str, str]:
    """``k=v,k=v`` as a mapping. Raises InvalidHeader."""
    tags: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = (piece.strip() for piece in part.partition("="))
        if not separator or not key or len(key) > MAX_ATTRIBUTE or len(value) > MAX_ATTRIBUTE:
            raise InvalidHeader("x-tags must read `key=value,key=value`, each at most 256 characters")
        tags[key] = value
    if len(tags) > MAX_TAGS:
        raise InvalidHeader(f"x-tags holds {len(tags)} tags, at most {MAX_TAGS} are kept")
    return tags


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
