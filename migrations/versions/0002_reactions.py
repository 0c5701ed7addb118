"""what the learner did about a shift of taste

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("drift_events") as table:
        table.add_column(sa.Column("reaction", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("drift_events") as table:
        table.drop_column("reaction")
