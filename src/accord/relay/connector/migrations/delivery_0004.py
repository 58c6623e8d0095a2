"""Keep whose messages opened a chat to an agent, so that its right to answer ends with the link."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0004"
down_revision = "delivery_0003"
branch_labels = None
depends_on = None
since = "0.2.0"

_COLUMNS = ("author", "chat_id", "parent_id")


def upgrade() -> None:
    """Create the table of authors, and say in the vault whose event carried a capability."""
    op.create_table(
        "chat_authors",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "platform", "scope_id", "chat_id", "author"),
        sqlite_with_rowid=False,
    )
    op.create_index("chat_authors_delivered_at", "chat_authors", ["delivered_at"])
    for column in _COLUMNS:
        op.add_column("vault", sa.Column(column, sa.Text(), nullable=True))


def downgrade() -> None:
    """Take both away; chats stay open for their days, as they were before."""
    for column in _COLUMNS:
        op.drop_column("vault", column)
    op.drop_index("chat_authors_delivered_at", "chat_authors")
    op.drop_table("chat_authors")
