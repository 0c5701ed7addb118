"""Inference ids and feedback tokens that only this service can have issued.

An id is 32 lower-case letters and digits: 80 random bits and an 80-bit HMAC over them, in base32. So a foreign id is
known at once, without a look-up, and feedback that comes before its generation is stored can be accepted.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from serving.schemas import bare_inference_id

SECRET_BYTES = 32
_RANDOM_BYTES = 10
_MAC_BYTES = 10
_TOKEN_MAC_BYTES = 15
_ID = re.compile(r"[a-z2-7]{32}")


class InvalidToken(ValueError):
    """A feedback token that was not issued here, was altered, or has expired. The message says which."""


class InvalidSecret(ValueError):
    """The signing key file holds no usable key."""


def load_or_create_secret(path: Path) -> bytes:
    """The signing key in `path`, made on first use (mode 0600). Several processes may race: all get the same key.

    Raises InvalidSecret where the file is shorter than 32 bytes, and OSError where it cannot be read or written.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first: its key counts, not ours
                os.link(draft, path)
        finally:
            draft.unlink()
    secret = path.read_bytes()
    if len(secret) < SECRET_BYTES:
        raise InvalidSecret(
            f"auth.signing_key_file {path} holds {len(secret)} bytes, at least {SECRET_BYTES} are needed; "
            "remove it to have a new one made (ids and tokens issued before then become invalid)"
        )
    return secret


def _encode(data: bytes) -> str:
    return base64.b32encode(data).decode("ascii").rstrip("=").lower()


class InferenceIds:
    """Issues and checks ids and tokens with one secret. Safe to share between threads."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES:
            raise InvalidSecret(f"the signing key has {len(secret)} bytes, at least {SECRET_BYTES} are needed")
        self._secret = secret

    def _mac(self, purpose: bytes, message: bytes, length: int) -> bytes:
        return hmac.new(self._secret, purpose + b"\0" + message, hashlib.sha256).digest()[:length]

    def issue(self) -> str:
        """A new id, unlike any before."""
        random = secrets.token_bytes(_RANDOM_BYTES)
        return _encode(random + self._mac(b"inference", random, _MAC_BYTES))

    def parse(self, text: str) -> str | None:
        """The bare id in `text` (a response's `id` or the header ``x-inference-id``); None when it is not ours."""
        bare = bare_inference_id(text)
        if not _ID.fullmatch(bare):
            return None
        data = base64.b32decode(bare.upper())
        random, mac = data[:_RANDOM_BYTES], data[_RANDOM_BYTES:]
        return bare if hmac.compare_digest(mac, self._mac(b"inference", random, _MAC_BYTES)) else None

    def feedback_token(self, inference_id: str, expires_at: float) -> str:
        """A token for feedback on `inference_id` (bare) without an API key, until `expires_at` (Unix seconds)."""
        claim = f"{inference_id}.{int(expires_at)}"
        mac = self._mac(b"feedback", claim.encode("ascii"), _TOKEN_MAC_BYTES)
        return f"{claim}.{_encode(mac)}"

    def check_token(self, token: str, now: float) -> str:
        """The inference id that `token` allows feedback on at `now` (Unix seconds). Raises InvalidToken."""
        claim, _, signature = token.rpartition(".")
        try:
            mac = base64.b32decode(signature.upper())
            message = claim.encode("ascii")
        except (binascii.Error, ValueError):
            raise InvalidToken("the feedback token is malformed") from None
        if not hmac.compare_digest(mac, self._mac(b"feedback", message, _TOKEN_MAC_BYTES)):
            raise InvalidToken("the feedback token was not issued by this service")
        inference_id, _, expires_at = claim.partition(".")
        if now >= int(expires_at):
            raise InvalidToken("the feedback token has expired")
        return inference_id
