"""What a log gives to who uses it, whatever is behind it: records, and two ways to refuse."""

from dataclasses import dataclass

MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class LogUnavailable(Exception):
    """The broker did not answer, or refused. What was sent may or may not be there; sending it again is safe."""


class MessageTooLarge(Exception):
    """A message is larger than the log takes; sending it again cannot succeed."""


@dataclass(frozen=True, slots=True)
class Record:
    """One message as it lies in the log."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes
