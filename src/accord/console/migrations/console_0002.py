"""The users of the console with their roles."""

import sqlalchemy as sa
from alembic import op

revision = "console_0002"
down_revision = "console_0001"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "users",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("added_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    """Take it away; who has the machine can still log in."""
    op.drop_table("users")
