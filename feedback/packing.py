"""Token ids and log-probabilities as bytes: exact, compact, the same on every machine."""

import sys
from array import array
from collections.abc import Sequence


def _pack(kind: str, values: Sequence[int] | Sequence[float]) -> bytes:
    packed = array(kind, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(kind: str, data: bytes) -> array:
    unpacked = array(kind)
    unpacked.frombytes(data)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Little-endian uint32. Raises OverflowError for an id outside 0..2^32-1."""
    return _pack("I", token_ids)


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    return tuple(_unpack("I", data))


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Little-endian float64: what was logged comes back bit by bit."""
    return _pack("d", logprobs)


def unpack_logprobs(data: bytes) -> tuple[float, ...]:
    return tuple(_unpack("d", data))
