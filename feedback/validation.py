"""Whether a feedback makes sense, and the number it stands for. Pure; every refusal names the field."""

import hashlib
import json
from collections.abc import Mapping

from pydantic import ValidationError

from feedback.schemas import FeedbackIn
from feedback.settings import MetricSettings
from serving.schemas import check_text

MAX_TAGS = 64
MAX_TAG_LENGTH = 512


class InvalidFeedback(ValueError):
    """The feedback is refused because of `field`."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def parse_feedback(body: bytes | object) -> FeedbackIn:
    """A `FeedbackIn` of a request body (bytes) or of one item of a batch (parsed JSON). Raises InvalidFeedback."""
    try:
        item = FeedbackIn.model_validate_json(body) if isinstance(body, bytes) else FeedbackIn.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        # `value` may be one of three types, and none fits: say that once.
        if found[0]["loc"][:1] == ("value",):
            raise InvalidFeedback("value", "must be true, false or a finite number") from error
        field = ".".join(str(part) for part in found[0]["loc"])
        if not field:
            field = "inference_id" if "exactly one of" in found[0]["msg"] else "body"
        raise InvalidFeedback(field, found[0]["msg"]) from error
    _check_strings(item)
    if item.episode_id is not None and item.choice_index != 0:
        raise InvalidFeedback("choice_index", "belongs to an inference_id; an episode is rated as a whole")
    return item


def metric_value(item: FeedbackIn, metrics: Mapping[str, MetricSettings]) -> float:
    """The number that `item.value` is on its metric. Raises InvalidFeedback."""
    metric = metrics.get(item.metric_name)
    if metric is None:
        known = ", ".join(sorted(metrics)) or "none"
        raise InvalidFeedback("metric_name", f"there is no metric {item.metric_name!r}; configured are: {known}")
    value = item.value
    if isinstance(value, str):
        raise InvalidFeedback("value", f"metric {item.metric_name!r} takes a {metric.type}, not a string")
    if metric.type == "boolean":
        if value not in (0, 1):
            raise InvalidFeedback("value", f"metric {item.metric_name!r} is boolean: true or false (or 1 or 0)")
        return float(value)
    if isinstance(value, bool):
        raise InvalidFeedback("value", f"metric {item.metric_name!r} takes a number, not true or false")
    if metric.minimum is not None and value < metric.minimum:
        raise InvalidFeedback("value", f"{value:g} is below the minimum {metric.minimum:g} of {item.metric_name!r}")
    if metric.maximum is not None and value > metric.maximum:
        raise InvalidFeedback("value", f"{value:g} is above the maximum {metric.maximum:g} of {item.metric_name!r}")
    return float(value)


def content_hash(item: FeedbackIn) -> str:
    """What must be equal for a repeated idempotency key to mean the same feedback again."""
    content = item.model_dump(mode="json", exclude={"idempotency_key", "dryrun"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_strings(item: FeedbackIn) -> None:
    for name in ("inference_id", "episode_id", "metric_name", "user", "idempotency_key", "comment"):
        _check_string(name, getattr(item, name))
    if len(item.tags) > MAX_TAGS:
        raise InvalidFeedback("tags", f"at most {MAX_TAGS} tags")
    for name, value in item.tags.items():
        if len(name) > MAX_TAG_LENGTH or len(value) > MAX_TAG_LENGTH:
            raise InvalidFeedback("tags", f"names and values have at most {MAX_TAG_LENGTH} characters")
        _check_string("tags", name)
        _check_string("tags", value)


def _check_string(field: str, value: str | None) -> None:
    try:
        check_text(value or "")
    except ValueError as error:
        raise InvalidFeedback(field, str(error)) from None
