"""Settings of the feedback service, the log and the database."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class KafkaSettings(BaseModel):
    """The log between the parts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    bootstrap_servers: str | None = None
    """Comma-separated `host:port` of a Kafka cluster; empty: the embedded broker is started."""
    embedded_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the embedded broker on loopback; 0 picks a free one."""
    topic_prefix: str = ""
    """Put in front of every topic name, so that several services can share a cluster."""
    replication_factor: Annotated[int, Field(ge=-1)] = 1
    """Of topics created by the service; -1 takes the cluster's default."""
    retention_days: Annotated[float, Field(gt=0)] | None = None
    """How long topics created by the service keep messages, read or not; empty: for ever, so nothing unread goes."""
    security: dict[str, str] = {}
    """Further client settings of kafka-python, e.g. `{security_protocol = "SASL_SSL"}`. Secrets: environment."""

    @property
    def retention_ms(self) -> int:
        """As Kafka has it: -1 is for ever."""
        return -1 if self.retention_days is None else round(self.retention_days * 86_400_000)


class DatabaseSettings(BaseModel):
    """The record of what was asked, answered, rated and learned."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: str | None = None
    """SQLAlchemy URL; empty: SQLite in `data_dir`. `DATABASE_URL` is read too."""


class MetricSettings(BaseModel):
    """One kind of feedback that clients may post."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    type: Literal["boolean", "float"] = "float"
    """`boolean` takes true/false (1/0); `float` a number."""
    minimum: float | None = -1.0
    """Smallest value accepted."""
    maximum: float | None = 1.0
    """Largest value accepted."""
    weight: float = 1.0
    """Weight of the metric in the reward."""
    required: bool = True
    """A trajectory is released at once when all its required metrics are in; else when the wait window ends."""


class FeedbackSettings(BaseModel):
    """How feedback becomes a reward."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    metrics: dict[str, MetricSettings] = {"reward": MetricSettings()}
    """The metrics that clients may post, by name."""
    combine: Literal["weighted_mean", "weighted_sum", "product", "min"] = "weighted_mean"
    """How several metrics become one reward."""
    wait_seconds: Annotated[float, Field(ge=0)] = 600.0
    """How long a generation waits for its required metrics, from its end. A change holds for what waits already."""
    default_reward: float | None = None
    """Reward of a generation nobody rated within the window; empty: it is not trained on."""
    episode_idle_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """An episode without a new inference for this long counts as ended."""
    episode_answers: Annotated[int, Field(ge=1)] = 256
    """Most answers of one episode that wait for feedback together; beyond it the windows of the oldest end at once."""
    orphan_seconds: Annotated[float, Field(gt=0)] = 900.0
    """Feedback whose generation has not arrived after this long is counted as orphaned."""
    user_per_minute: Annotated[float, Field(ge=1)] | None = 600.0
    """Most feedback from one user (or one feedback token) in a minute; what exceeds it is `429`. Empty: no cap."""
    key_per_minute: Annotated[float, Field(ge=1)] | None = None
    """Most feedback under one API key in a minute; empty: no cap."""
    outlier_deviations: Annotated[float, Field(gt=0)] | None = 50.0
    """A value further than so many (robust) standard deviations from the median of its metric is put in quarantine: it
    counts for nothing until `online-rl quarantine release`. Only for metrics without both bounds. Empty: none is."""
