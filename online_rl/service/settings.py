"""Settings of the processes: the Ray cluster that the service runs on."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class ClusterSettings(BaseModel):
    """Where the processes run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    address: str | None = None
    """Address of a running Ray cluster (`auto`, or `host:port`); empty: a local one is started, on loopback only."""
    logical_cpus: Annotated[int, Field(ge=1)] = 16
    """CPUs that the local Ray cluster counts on, whatever the machine has: its parts are idle most of the time."""
    object_store_mib: Annotated[int, Field(ge=80)] = 128
    """Shared memory for Ray's own messages. Weights and events do not pass through it."""
    memory_gib: Annotated[float, Field(ge=0)] = 5.0
    """Free memory that `up` asks for before it starts (the default model needs this much); 0: no check."""
