"""Conversations belong to users; those from before belong to the console's owner."""

import sqlalchemy as sa
from alembic import op

revision = "console_0003"
down_revision = "console_0002"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the column; it is empty for whoever logs in without a user."""
    op.add_column(
        "conversations", sa.Column("user_name", sa.Text(), nullable=False, server_default="")
    )
    op.create_index("conversations_by_user", "conversations", ["user_name", "changed_at"])
    op.drop_index("conversations_by_change", "conversations")


def downgrade() -> None:
    """Take it away; the conversations of users are lost, since nobody else may see them."""
    of_users = "SELECT id FROM conversations WHERE user_name <> ''"
    op.execute(sa.text(f"DELETE FROM turns WHERE conversation IN ({of_users})"))  # noqa: S608
    op.execute(sa.text("DELETE FROM conversations WHERE user_name <> ''"))
    op.create_index("conversations_by_change", "conversations", ["changed_at"])
    op.drop_index("conversations_by_user", "conversations")
    op.drop_column("conversations", "user_name")
