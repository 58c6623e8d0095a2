"""The journal and its heads."""

import sqlalchemy as sa
from alembic import op

revision = "journal_0001"
down_revision = None
branch_labels = ("journal",)
depends_on = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "journal",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("checksum", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("stream", "seq"),
        sa.UniqueConstraint("stream", "id", name="journal_stream_id"),
    )
    op.create_table(
        "journal_heads",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("stream"),
    )
