"""Why a parsed request is not answered, in the engine's own shape of errors."""

from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error for the client. `param` is the field that it must correct."""

    message: str
    param: str
    status: HTTPStatus = HTTPStatus.BAD_REQUEST
    kind: str = "BadRequestError"


def unknown_model(message: str) -> Refusal:
    return Refusal(message, "model", HTTPStatus.NOT_FOUND, "NotFoundError")
