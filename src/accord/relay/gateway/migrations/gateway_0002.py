"""Keep the actions of the agent until they have ended, and a name for each turn."""

import sqlalchemy as sa
from alembic import op

revision = "gateway_0002"
down_revision = "gateway_0001"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add both; turns that were taken before have no name."""
    op.add_column("events", sa.Column("turn", sa.Text(), nullable=True))
    op.create_table(
        "actions",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("written_at", sa.BigInteger(), nullable=True),
        sa.Column("taken_at", sa.BigInteger(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("request_id"),
    )
    op.create_index("actions_by_end", "actions", ["ended_at"])
    is_waiting = sa.text("ended_at IS NULL")
    op.create_index(
        "actions_waiting",
        "actions",
        ["number"],
        sqlite_where=is_waiting,
        postgresql_where=is_waiting,
    )


def downgrade() -> None:
    """Take both away; actions that wait are lost, as an older version has no place for them."""
    op.drop_index("actions_waiting", "actions")
    op.drop_index("actions_by_end", "actions")
    op.drop_table("actions")
    op.drop_column("events", "turn")
