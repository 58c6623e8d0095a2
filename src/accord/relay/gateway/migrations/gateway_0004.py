"""Keep when old rows were last deleted, so that a clock that jumped deletes nothing."""

import sqlalchemy as sa
from alembic import op

revision = "gateway_0004"
down_revision = "gateway_0003"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the table; the first pass has nothing to compare the clock with."""
    op.create_table(
        "retention_passes",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("passed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    """Take it away; what is old is deleted by the clock alone again."""
    op.drop_table("retention_passes")
