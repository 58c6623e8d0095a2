"""Operators' tokens, secrets of the store, and counts of messages of people who are not linked."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0012"
down_revision = "delivery_0011"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add them; what was taken before stays as it was recorded."""
    op.create_table(
        "operator_tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("read_only", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "store_secrets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("box", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "unlinked_counts",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "platform", "bot_id", "tenant", "instance", "rule"),
    )
    op.add_column("receipts", sa.Column("counted", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take them away; tokens of operators end, and counts that were not journaled yet are lost."""
    op.drop_column("receipts", "counted")
    op.drop_table("unlinked_counts")
    op.drop_table("store_secrets")
    op.drop_table("operator_tokens")
