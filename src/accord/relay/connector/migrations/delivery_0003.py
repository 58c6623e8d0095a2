"""Keep with an event where in a trace it is, so that its delivery goes on from there."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0003"
down_revision = "delivery_0002"
branch_labels = None
depends_on = None
since = "0.2.0"

_TABLES = ("buffer", "dead_letters")


def upgrade() -> None:
    """Add the column; what was taken before belongs to no trace."""
    for table in _TABLES:
        op.add_column(table, sa.Column("traceparent", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take the column away; what waits is delivered all the same."""
    for table in _TABLES:
        op.drop_column(table, "traceparent")
