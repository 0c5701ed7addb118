"""what is asked again and again is answered by an index: why answers were dropped, what feedback waits for an answer

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
    for name, column in (("feedback_by_inference", "inference_id"), ("feedback_by_episode", "episode_id")):
        op.drop_index(name, table_name="feedback")
        op.create_index(name, "feedback", [column, "status"])


def downgrade() -> None:
    for name, column in (("feedback_by_inference", "inference_id"), ("feedback_by_episode", "episode_id")):
        op.drop_index(name, table_name="feedback")
        op.create_index(name, "feedback", [column])
    op.drop_index("generations_by_drop_reason", table_name="generations")
