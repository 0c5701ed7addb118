"""Settings of the policy endpoint and of the hot swap."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class ServingSettings(BaseModel):
    """How the policy is served."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str = "default"
    """A Hugging Face folder, a model id, or `default` (SmolLM2-135M-Instruct, prepared by `make setup`)."""
    model_name: str = "policy"
    """The name clients put in `model`; `policy` is the live version, `policy@v12` pins one."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback only with API keys configured."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port of the HTTP endpoint."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """Number of engine replicas."""
    max_model_len: Annotated[int, Field(ge=64)] = 2048
    """Longest prompt plus answer, in tokens."""
    max_num_seqs: Annotated[int, Field(ge=1)] = 32
    """Most requests that one engine decodes together."""
    kv_cache_gib: Annotated[float, Field(gt=0)] = 1.0
    """Memory for the key-value cache on CPU, in GiB."""
    cpu_threads: str = "auto"
    """Cores that the engine's threads bind to on CPU (`VLLM_CPU_OMP_THREADS_BIND`), such as `0-1`."""
    engine_args: dict[str, str | int | float | bool] = {}
    """Further arguments of `vllm serve`, by name without dashes in front, e.g. `{gpu_memory_utilization = 0.8}`."""
    capture_queue: Annotated[int, Field(ge=1)] = 4096
    """Most generations held in memory between the engine and the log; beyond it they spool to disk."""
    spool_mib: Annotated[int, Field(ge=1)] = 512
    """Most disk for generations that the log has not taken yet; beyond it the oldest are dropped and counted."""
    train_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the traffic that may be trained on."""
    haproxy: bool = False
    """Let Ray Serve route with HAProxy (bound to `host`) instead of its own proxy."""


class SwapSettings(BaseModel):
    """How new weights reach the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    mode: Literal["auto", "lora", "merged", "full"] = "auto"
    """`lora`: adapters side by side; `merged`: base + adapter reloaded in place; `full`: full weights trained and
    reloaded; `auto`: `lora` on CUDA, `merged` on CPU."""
    drain_seconds: Annotated[float, Field(ge=0)] = 10.0
    """Longest wait for running requests before an in-place reload; what still runs then spans both versions."""
    probe_tolerance: Annotated[float, Field(gt=0)] = 0.15
    """Largest mean |difference| between the engine's and the learner's log-probabilities that proves a delivery."""
    poll_seconds: Annotated[float, Field(gt=0)] = 0.25
    """How often a replica looks whether another version is assigned to it."""
    keep_versions: Annotated[int, Field(ge=1)] = 4
    """Versions whose merged or full weights stay on disk (adapters stay all) and whose adapters stay loaded."""


class AuthSettings(BaseModel):
    """API keys. Values come from the environment only (`ONLINE_RL_API_KEYS`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    signing_key_file: Path | None = None
    """File of the secret that signs inference ids and feedback tokens; made in `data_dir` on the first start."""
    feedback_token_seconds: Annotated[int, Field(gt=0)] = 7 * 24 * 3600
    """How long a feedback token that came with a response stays valid."""
