"""Requests that came, and the answers that are given again."""

import sqlalchemy as sa
from alembic import op

revision = "bus_0001"
down_revision = None
branch_labels = ("bus",)
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "requests",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("answer_head", sa.Text(), nullable=True),
        sa.Column("answer_body", sa.LargeBinary(), nullable=True),
        sa.Column("checksum", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )
