"""SQL tables of the learner: policy versions, controls, updates, what was trained on, drift, parts.

Times are Unix seconds. `metadata` is what the migrations and the tests create.
"""

import sqlalchemy as sa

metadata = sa.MetaData()

policy_versions = sa.Table(
    "policy_versions",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("parent", sa.Integer, nullable=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("artifact", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=True),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("changed_at", sa.Double, nullable=False),
)
# The database itself refuses a second live version, whatever the code above it does.
sa.Index(
    "policy_versions_one_live",
    policy_versions.c.state,
    unique=True,
    sqlite_where=policy_versions.c.state == "live",
    postgresql_where=policy_versions.c.state == "live",
)

controls = sa.Table(
    "controls",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.JSON, nullable=False),
    sa.Column("reason", sa.Text, nullable=True),
    sa.Column("changed_at", sa.Double, nullable=False),
)

updates = sa.Table(
    "updates",
    metadata,
    sa.Column("update", sa.Integer, primary_key=True, autoincrement=False),
    # The newest version that was published when the update ran: the parent of what it makes.
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("trajectories", sa.Integer, nullable=False),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
)

trainings = sa.Table(
    "trainings",
    metadata,
    # The primary key is the guarantee that a trajectory trains at most once.
    sa.Column("trajectory_id", sa.String(256), primary_key=True),
    sa.Column("update", sa.Integer, nullable=False, index=True),
    sa.Column("trained_at", sa.Double, nullable=False),
)

drops = sa.Table(
    "drops",
    metadata,
    sa.Column("trajectory_id", sa.String(256), primary_key=True),
    sa.Column("reason", sa.String(64), nullable=False, index=True),
    sa.Column("dropped_at", sa.Double, nullable=False),
)

drift_events = sa.Table(
    "drift_events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    # `reward`, `residual`, `metric:NAME` or `mix`.
    sa.Column("stream", sa.String(160), nullable=False),
    # `dimension=label` of the cohort that changed, empty for all traffic.
    sa.Column("cohort", sa.String(160), nullable=False, server_default=""),
    # `taste` or `prompt_mix`.
    sa.Column("cause", sa.String(16), nullable=False, server_default="taste"),
    sa.Column("detected_at", sa.Double, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("update", sa.Integer, nullable=False),
    # Rewards that the detector had seen when it fired; with `stream` and `cohort` the identity of an event, so that a
    # replay after a crash writes it once.
    sa.Column("trajectories", sa.Integer, nullable=False),
    sa.Column("before", sa.Double, nullable=False),
    sa.Column("after", sa.Double, nullable=False),
    sa.Column("evidence", sa.JSON, nullable=False),
    sa.Column("recovered_at", sa.Double, nullable=True),
    sa.Column("recovered_after", sa.Integer, nullable=True),
    sa.Column("recovered_seconds", sa.Double, nullable=True),
    # What the learner did about it (`online_rl.reaction.Reaction`).
    sa.Column("reaction", sa.JSON, nullable=True),
    sa.UniqueConstraint("stream", "cohort", "trajectories", name="drift_events_once"),
)

parts = sa.Table(
    "parts",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("heartbeat_at", sa.Double, nullable=False),
)
