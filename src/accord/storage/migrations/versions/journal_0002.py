"""The floor up to which a stream was pruned, and the name by which a store is known elsewhere."""

import sqlalchemy as sa
from alembic import op

revision = "journal_0002"
down_revision = "journal_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column and a table."""
    op.add_column(
        "journal_heads",
        sa.Column("floor", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    )
    op.create_table(
        "journal_identity",
        sa.Column("id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
