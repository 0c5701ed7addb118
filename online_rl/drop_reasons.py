"""Why a released trajectory does not train."""

from enum import StrEnum


class Reason(StrEnum):
    """Recorded in `drops` and counted under these names."""

    STALE = "stale"
    REJECTED_VERSION = "rejected_version"
    GREEDY = "greedy"
    STRUCTURED = "structured"
    MISSING_LOGPROBS = "missing_logprobs"
    MISSING_VERSIONS = "missing_versions"
    NON_FINITE = "non_finite"
    UNKNOWN_TOKEN = "unknown_token"
    TOO_LONG = "too_long"
    UPDATE_FAILED = "update_failed"
    DIVERGED = "diverged"
    BEFORE_SHIFT = "before_shift"
