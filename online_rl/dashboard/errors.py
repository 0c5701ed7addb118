"""Problems as clients of an OpenAI-compatible service expect them."""

from typing import Any


def error_body(
    message: str, code: str, kind: str = "invalid_request_error", param: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
