"""Communities, their events and their snapshots."""

import sqlalchemy as sa
from alembic import op

revision = "community_0001"
down_revision = None
branch_labels = ("community",)
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "communities",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    op.create_table(
        "events",
        sa.Column("community", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lamport", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("event_id", name, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("author", name, nullable=False),
        sa.Column("author_seq", sa.BigInteger(), nullable=True),
        sa.Column("prev", sa.Text(), nullable=True),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("arrival", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("community", "lamport", "event_id", "digest"),
    )
    op.create_index("events_by_author", "events", ["community", "author", "author_seq", "digest"])
    op.create_index("events_by_arrival", "events", ["community", "arrival"])
    is_membership = sa.text("stage = 'membership'")
    op.create_index(
        "events_of_membership",
        "events",
        ["community", "lamport", "event_id", "digest"],
        sqlite_where=is_membership,
        postgresql_where=is_membership,
    )
    op.create_table(
        "snapshots",
        sa.Column("community", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lamport", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("wall_clock", sa.Text(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("is_base", sa.Boolean(), nullable=False),
        sa.Column("author", sa.Text(), nullable=True),
        sa.Column("signature", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("community", "lamport"),
    )
