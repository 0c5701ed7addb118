"""What the learner publishes: policy versions, and the probes that prove which weights answer."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

BASE_VERSION = 0
MANIFEST, PROBES, ADAPTER, MERGED = "manifest.json", "probes.json", "adapter", "merged"
"""What a version's artifact folder holds: see `Manifest`."""


class VersionState(StrEnum):
    CANDIDATE = "candidate"
    CANARY = "canary"
    LIVE = "live"
    RETIRED = "retired"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


TRANSITIONS: dict[VersionState, frozenset[VersionState]] = {
    VersionState.CANDIDATE: frozenset({VersionState.CANARY, VersionState.LIVE, VersionState.REJECTED}),
    VersionState.CANARY: frozenset({VersionState.LIVE, VersionState.REJECTED, VersionState.ROLLED_BACK}),
    VersionState.LIVE: frozenset({VersionState.RETIRED, VersionState.ROLLED_BACK}),
    VersionState.RETIRED: frozenset({VersionState.LIVE}),
    VersionState.REJECTED: frozenset(),
    VersionState.ROLLED_BACK: frozenset({VersionState.LIVE}),
}
"""Which state may follow which. Whatever is not here is refused."""


class Probe(BaseModel):
    """A token sequence whose log-probabilities tell version `version` from its parent.

    `logprobs[i]` is the learner's log-probability of ``token_ids[positions[i]]`` given the tokens before it, computed
    on the weights as they are served; `parent_logprobs` the same under the parent version.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    logprobs: tuple[float, ...]
    parent_logprobs: tuple[float, ...]


class Manifest(BaseModel):
    """``manifest.json`` of a version's artifact folder: written last, so a folder without it is unfinished.

    The folder holds ``adapter/`` (PEFT adapter, kind ``lora``), ``merged/`` (a complete model folder ready for the
    engine, with an explicit ``lm_head.weight``) where `swap.mode` needs it, and ``probes.json`` (a list of `Probe`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    version: Annotated[int, Field(ge=0)]
    parent: int | None
    kind: Literal["base", "lora", "full"]
    base_sha256: str
    """SHA-256 of the base model's ``model.safetensors``: an adapter of another base is refused."""
    files: dict[str, str]
    """Path relative to the folder → SHA-256, of every file but the manifest itself."""
    lora_rank: int | None = None
    update: int = 0
    """How many policy updates these weights have had."""
    created_at: float


class PolicyVersion(BaseModel):
    """One row of the registry."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    parent: int | None
    state: VersionState
    artifact: str
    """Folder (or fsspec URL) that holds ``manifest.json``; for `base` the model folder itself."""
    reason: str | None = None
    metrics: dict[str, float] = {}
    """Measured at publish or proof: ``kl_to_base``, ``mismatch_mean``, ``mismatch_kl``, ``swap_seconds`` …"""
    created_at: float
    changed_at: float
