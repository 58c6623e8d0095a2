"""What a gateway has taken."""

import sqlalchemy as sa
from alembic import op

revision = "gateway_0001"
down_revision = None
branch_labels = ("gateway",)
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "events",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("buffer_id", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("taken_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("buffer_id"),
        sa.UniqueConstraint("message"),
    )
    op.create_index("events_by_time", "events", ["taken_at"])
    is_unfinished = sa.text("body IS NOT NULL")
    op.create_index(
        "events_unfinished",
        "events",
        ["number"],
        sqlite_where=is_unfinished,
        postgresql_where=is_unfinished,
    )
