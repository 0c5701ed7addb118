"""What is wanted of each replica and what it reports: the only way the deployer and the replicas talk."""

import sqlalchemy as sa

metadata = sa.MetaData()

replicas = sa.Table(
    "replicas",
    metadata,
    sa.Column("replica_id", sa.String(128), primary_key=True),
    sa.Column("assigned_version", sa.Integer, nullable=False),
    sa.Column("actual_version", sa.Integer),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("heartbeat_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("proof", sa.JSON, nullable=False),
    sa.Column("refused_version", sa.Integer),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("failed_requests", sa.BigInteger, nullable=False),
    sa.Column("captured", sa.BigInteger, nullable=False),
    sa.Column("capture_failures", sa.BigInteger, nullable=False),
    sa.Column("spool_dropped", sa.BigInteger, nullable=False),
)
"""One row a replica slot. `state`: starting, serving, swapping, failed. `refused_version`: the assigned version that
could not be delivered, with `detail` saying why. `proof`: the last `serving.swap.SwapReport`. The counters go on
over restarts of the replica."""

rollouts = sa.Table(
    "rollouts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("previous", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("finished_at", sa.Float),
    sa.Index("ix_rollouts_state", "state"),
)
"""One row a delivery of a candidate to all replicas. `state`: running, live, refused. `started_at`: when it was last
assigned; slots that join meanwhile begin it anew."""
