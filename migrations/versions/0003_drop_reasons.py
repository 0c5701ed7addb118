"""why answers were dropped is counted from an index

Revision ID: 0003
Revises: 0002
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("generations_by_drop_reason", "generations", ["state", "drop_reason"])


def downgrade() -> None:
    op.drop_index("generations_by_drop_reason", table_name="generations")
