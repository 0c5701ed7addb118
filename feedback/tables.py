"""SQL tables of the feedback service: what was answered, what was said about it, and what was made of both.

Times are Unix seconds. `metadata` is what the migrations and the tests create. Every queue that a loop asks for again
and again ("what is new", "what is due", "what is unpublished") has an index that leads with it, so that a question
costs the same with a hundred thousand rows as with none.
"""

import sqlalchemy as sa

metadata = sa.MetaData()

# Grows past 2^31 on PostgreSQL; SQLite numbers rows by itself only for exactly INTEGER.
_Sequence = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

generations = sa.Table(
    "generations",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True),
    sa.Column("inference_id", sa.String(256), nullable=False),
    sa.Column("prompt_index", sa.Integer, nullable=False),
    sa.Column("turn", sa.Integer, nullable=False),
    sa.Column("choice", sa.Integer, nullable=False),
    # As the response numbers its choices, across prompts.
    sa.Column("choice_index", sa.Integer, nullable=False),
    sa.Column("api_key_id", sa.String(64), nullable=False),
    # The inference's own id where the request named no episode: never a placeholder that strangers would share.
    sa.Column("episode_id", sa.String(256), nullable=False),
    sa.Column("user_id", sa.Text, nullable=True),
    # Token ids as little-endian uint32, log-probabilities as little-endian float64: exact and compact.
    sa.Column("prompt_token_ids", sa.LargeBinary, nullable=False),
    sa.Column("token_ids", sa.LargeBinary, nullable=False),
    sa.Column("behavior_logprobs", sa.LargeBinary, nullable=False),
    # The rest of `serving.schemas.Generation`.
    sa.Column("data", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("finished_at", sa.Double, nullable=False),
    sa.Column("stored_at", sa.Double, nullable=False),
    # open → released | dropped. Only an open generation can go into a trajectory, so none trains twice.
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("drop_reason", sa.String(64), nullable=True),
    sa.Column("trajectory_id", sa.String(64), nullable=True),
    # When its window ends and it is released or dropped with what is there.
    sa.Column("due_at", sa.Double, nullable=False),
    # Since when its content is gone (feedback/erasure.py); what is left are ids.
    sa.Column("erased_at", sa.Double, nullable=True),
    sa.UniqueConstraint("inference_id", "prompt_index", "turn", "choice", name="generations_once"),
    sa.Index("generations_by_episode", "api_key_id", "episode_id", "state"),
    sa.Index("generations_due", "state", "due_at"),
    sa.Index("generations_by_drop_reason", "state", "drop_reason"),
    sa.Index("generations_by_user", "user_id"),
)

feedback = sa.Table(
    "feedback",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True),
    sa.Column("feedback_id", sa.String(64), nullable=False, unique=True),
    # Who posted: an API key's id, or `token:<inference id>` for whoever holds that answer's feedback token.
    sa.Column("owner", sa.String(300), nullable=False),
    sa.Column("idempotency_key", sa.String(256), nullable=True),
    sa.Column("content_hash", sa.String(64), nullable=False),
    sa.Column("inference_id", sa.String(256), nullable=True),
    sa.Column("episode_id", sa.String(256), nullable=True),
    sa.Column("choice_index", sa.Integer, nullable=False),
    sa.Column("metric_name", sa.String(128), nullable=False),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("user_id", sa.String(256), nullable=True),
    sa.Column("comment", sa.Text, nullable=True),
    sa.Column("tags", sa.JSON, nullable=False),
    sa.Column("received_at", sa.Double, nullable=False),
    sa.Column("retracted_at", sa.Double, nullable=True),
    # new → waiting | joined | late | unused | refused (feedback/joining.py); waiting → any of these, or orphaned;
    # joined → used, once it is part of a released trajectory's reward. new → quarantined → vetted, which is as new.
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("erased_at", sa.Double, nullable=True),
    sa.UniqueConstraint("owner", "idempotency_key", name="feedback_once"),
    sa.Index("feedback_by_inference", "inference_id", "status"),
    sa.Index("feedback_by_episode", "episode_id", "status"),
    sa.Index("feedback_by_status", "status", "received_at"),
    sa.Index("feedback_by_user", "user_id"),
)

trajectories = sa.Table(
    "trajectories",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True),
    sa.Column("trajectory_id", sa.String(64), nullable=False, unique=True),
    sa.Column("api_key_id", sa.String(64), nullable=False),
    sa.Column("episode_id", sa.String(256), nullable=False),
    sa.Column("user_id", sa.Text, nullable=True),
    sa.Column("reward", sa.Double, nullable=False),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("action_tokens", sa.Integer, nullable=False),
    sa.Column("oldest_version", sa.Integer, nullable=True),
    # The event as it goes to the log: `feedback.schemas.Trajectory` as JSON, compressed with zlib.
    sa.Column("event", sa.LargeBinary, nullable=False),
    sa.Column("generated_at", sa.Double, nullable=False),
    sa.Column("rated_at", sa.Double, nullable=False),
    sa.Column("released_at", sa.Double, nullable=False, index=True),
    sa.Column("erased_at", sa.Double, nullable=True),
    sa.Index("trajectories_by_episode", "api_key_id", "episode_id"),
    sa.Index("trajectories_by_user", "user_id"),
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True),
    sa.Column("topic", sa.String(128), nullable=False),
    # The id of the row that the event is made from: a feedback, a trajectory, a dead letter, or an erased generation.
    sa.Column("key", sa.String(300), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    # waiting → published; refused: the log will never take it (see dead_letters); done: nobody will ask for it again.
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("published_at", sa.Double, nullable=True),
    sa.Column("partition", sa.Integer, nullable=True),
    sa.Column("offset", sa.BigInteger, nullable=True),
    # Identity of the log it was published to; another one means that the log was emptied since.
    sa.Column("log_identity", sa.String(128), nullable=True),
    sa.Index("outbox_by_state", "state", "seq"),
    sa.Index("outbox_by_topic", "topic", "state", "published_at"),
    sa.Index("outbox_by_key", "key"),
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("dead_letter_id", sa.String(64), primary_key=True),
    sa.Column("topic", sa.String(128), nullable=False),
    sa.Column("partition", sa.Integer, nullable=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("key", sa.Text, nullable=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False, index=True),
    sa.Column("replayed_at", sa.Double, nullable=True),
    sa.Column("erased_at", sa.Double, nullable=True),
)

erasures = sa.Table(
    "erasures",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    # Not the user's id but what stands in its place (`feedback.erasure.name_erased`).
    sa.Column("user_name", sa.String(64), nullable=False),
    # Empty: of every API key.
    sa.Column("api_key_id", sa.String(64), nullable=False),
    # What was asked or said until then is erased, also what arrives later.
    sa.Column("erased_at", sa.Double, nullable=False),
    # Keyed hashes of the token sequences that were erased: probes of versions may hold copies of them.
    sa.Column("sequences", sa.JSON, nullable=False),
    sa.UniqueConstraint("user_name", "api_key_id", name="erasures_once"),
)

replays = sa.Table(
    "replays",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("topic", sa.String(128), nullable=False),
    # Where reading begins again: an offset of every partition, or else a Unix time.
    sa.Column("from_offset", sa.BigInteger, nullable=True),
    sa.Column("from_time", sa.Double, nullable=True),
    sa.Column("requested_at", sa.Double, nullable=False),
    sa.Column("finished_at", sa.Double, nullable=True),
    # Messages that were read again.
    sa.Column("messages", sa.BigInteger, nullable=False),
    sa.Index("replays_by_topic", "topic", "finished_at"),
)
