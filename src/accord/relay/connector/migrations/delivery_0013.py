"""Keep which of several agents of a gateway answered last in a chat."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0013"
down_revision = "delivery_0012"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the table; a gateway names the agent again with its next answer."""
    op.create_table(
        "chat_profiles",
        sa.Column("instance", sa.Text(), primary_key=True),
        sa.Column("place", sa.Text(), primary_key=True),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("told_at", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    """Take it away; messages reach the default agent of a gateway again."""
    op.drop_table("chat_profiles")
