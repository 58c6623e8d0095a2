"""The history of figures that the console plots."""

import sqlalchemy as sa
from alembic import op

revision = "station_0001"
down_revision = None
branch_labels = ("station",)
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "figure_history",
        sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("slot"),
    )


def downgrade() -> None:
    """Take it away; the history is lost."""
    op.drop_table("figure_history")
