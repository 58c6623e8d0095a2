"""Keep how fast people who are not linked write to agents that are open to everybody."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0015"
down_revision = "delivery_0013"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the table; everybody begins anew."""
    op.create_table(
        "stranger_rates",
        sa.Column("instance", sa.Text(), primary_key=True),
        sa.Column("person", sa.Text(), primary_key=True),
        sa.Column("full_at", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    """Take it away; each connector counts by itself again."""
    op.drop_table("stranger_rates")
