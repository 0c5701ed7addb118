"""Problems as clients of an OpenAI-compatible service expect them."""

from typing import Any

from feedback.schemas import ErrorAnswer


def error_body(
    message: str, code: str, kind: str = "invalid_request_error", param: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How OpenAPI describes these answers, and those that any route may give: for want of a key or of a database."""
    return {status: {"model": ErrorAnswer} for status in sorted({401, 403, 503, *statuses})}
