"""which cohort changed, and whether it was taste or the prompt mix

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("drift_events") as table:
        table.alter_column("stream", existing_type=sa.String(64), type_=sa.String(160), existing_nullable=False)
        table.add_column(sa.Column("cohort", sa.String(160), nullable=False, server_default=""))
        table.add_column(sa.Column("cause", sa.String(16), nullable=False, server_default="taste"))
        table.drop_constraint("drift_events_once", type_="unique")
        table.create_unique_constraint("drift_events_once", ["stream", "cohort", "trajectories"])


def downgrade() -> None:
    # An older version knows all traffic and changes of taste only.
    op.execute(sa.text("DELETE FROM drift_events WHERE cohort <> '' OR cause <> 'taste' OR length(stream) > 64"))
    with op.batch_alter_table("drift_events") as table:
        table.drop_constraint("drift_events_once", type_="unique")
        table.create_unique_constraint("drift_events_once", ["stream", "trajectories"])
        table.drop_column("cause")
        table.drop_column("cohort")
        table.alter_column("stream", existing_type=sa.String(160), type_=sa.String(64), existing_nullable=False)
