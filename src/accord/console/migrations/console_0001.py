"""The conversations that people of a station have with its documents."""

import sqlalchemy as sa
from alembic import op

revision = "console_0001"
down_revision = None
branch_labels = ("console",)
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("corpus", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("conversations_by_change", "conversations", ["changed_at"])
    op.create_table(
        "turns",
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("sources", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("conversation", "number"),
        sa.ForeignKeyConstraint(["conversation"], ["conversations.id"], ondelete="CASCADE"),
    )


def downgrade() -> None:
    """Take them away; the conversations are lost."""
    op.drop_table("turns")
    op.drop_index("conversations_by_change", "conversations")
    op.drop_table("conversations")
