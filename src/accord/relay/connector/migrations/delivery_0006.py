"""Keep the actions of agents until they are done, and which answers could not be written."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0006"
down_revision = "delivery_0005"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Create the outbox, and mark requests whose answer was lost."""
    op.create_table(
        "outbox",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=True),
        sa.Column("bot_id", sa.Text(), nullable=True),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("sent", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("tried_at", sa.BigInteger(), nullable=True),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("instance", "request_id"),
    )
    is_waiting = sa.text("ended_at IS NULL")
    op.create_index(
        "outbox_waiting",
        "outbox",
        ["instance", "lane", "number"],
        sqlite_where=is_waiting,
        postgresql_where=is_waiting,
    )
    op.create_index("outbox_ended_at", "outbox", ["ended_at"])
    op.add_column("requests", sa.Column("unwritten_at", sa.BigInteger(), nullable=True))
    is_unwritten = sa.text("unwritten_at IS NOT NULL")
    op.create_index(
        "requests_unwritten",
        "requests",
        ["instance", "digest"],
        sqlite_where=is_unwritten,
        postgresql_where=is_unwritten,
    )


def downgrade() -> None:
    """Take both away; actions that wait are lost, as an older version has no place for them."""
    op.drop_index("requests_unwritten", "requests")
    op.drop_column("requests", "unwritten_at")
    op.drop_index("outbox_ended_at", "outbox")
    op.drop_index("outbox_waiting", "outbox")
    op.drop_table("outbox")
