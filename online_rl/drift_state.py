"""What the drift monitor remembers from one run of the learner to the next: part of every checkpoint."""

from pydantic import BaseModel, ConfigDict

from online_rl.cohort_stream import CohortStream
from online_rl.drift_events import OpenShift
from online_rl.prompt_clusters import PromptClusters


class DriftState(BaseModel):
    """All that the monitor needs to go on. A field has a default, which older checkpoints without it are read as."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seen: int = 0
    rewards: tuple[float, ...] = ()
    """The last ones, of which `fresh` came after the last shift."""
    residuals: tuple[float | None, ...] = ()
    times: tuple[float, ...] = ()
    fresh: int = 0
    open_shift: OpenShift | None = None
    labels: dict[str, tuple[str, ...]] = {}
    """Dimension → the cohort of each of `rewards`, empty where unknown."""
    fresh_mix: int = 0
    """Labels that came after the last change of the mix."""
    mix_changed: int | None = None
    """Rewards seen when the mix changed last."""
    totals: dict[str, tuple[int, float]] = {}
    """Reward and each metric → how many there were, and their sum."""
    streams: tuple[CohortStream, ...] = ()
    """Of cohorts, and of metrics in all traffic; seen last comes last."""
    prompts: PromptClusters = PromptClusters()
