"""what is erased and what is read again; an outbox row may name a generation

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ERASABLE = ("generations", "feedback", "trajectories", "dead_letters")


def upgrade() -> None:
    for name in ERASABLE:
        op.add_column(name, sa.Column("erased_at", sa.Double(), nullable=True))
    with op.batch_alter_table("outbox") as table:
        table.alter_column("key", existing_type=sa.String(64), type_=sa.String(300), existing_nullable=False)
    op.create_table(
        "erasures",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_name", sa.String(length=64), nullable=False),
        sa.Column("api_key_id", sa.String(length=64), nullable=False),
        sa.Column("erased_at", sa.Double(), nullable=False),
        sa.Column("sequences", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("user_name", "api_key_id", name="erasures_once"),
    )
    op.create_table(
        "replays",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("topic", sa.String(length=128), nullable=False),
        sa.Column("from_offset", sa.BigInteger(), nullable=True),
        sa.Column("from_time", sa.Double(), nullable=True),
        sa.Column("requested_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("replays_by_topic", "replays", ["topic", "finished_at"])


def downgrade() -> None:
    op.drop_index("replays_by_topic", table_name="replays")
    op.drop_table("replays")
    op.drop_table("erasures")
    # An older version makes no events of generations and would stop at such a row, or at a trajectory without content.
    op.execute(sa.text("DELETE FROM outbox WHERE topic = 'generations.v1' OR length(key) > 64"))
    op.execute(sa.text("DELETE FROM trajectories WHERE erased_at IS NOT NULL"))
    with op.batch_alter_table("outbox") as table:
        table.alter_column("key", existing_type=sa.String(300), type_=sa.String(64), existing_nullable=False)
    for name in reversed(ERASABLE):
        with op.batch_alter_table(name) as table:
            table.drop_column("erased_at")
