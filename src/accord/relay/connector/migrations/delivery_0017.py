"""Keep when retention was last applied, so that a clock that jumped deletes nothing."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0017"
down_revision = "delivery_0016"
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
    """Take it away; retention trusts the clock again."""
    op.drop_table("retention_passes")
