"""Index the messages of this node, and keep them when the log drops them."""

import sqlalchemy as sa
from alembic import op

revision = "community_0002"
down_revision = "community_0001"
branch_labels = None
depends_on = None
since = "0.2.0"


def upgrade() -> None:
    """Add the tables; the next start fills them from the log."""
    name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "messages",
        sa.Column("id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("community", sa.Integer(), nullable=False),
        sa.Column("event_id", name, nullable=False),
        sa.Column("author", name, nullable=False),
        sa.Column("recipient", name, nullable=False),
        sa.Column("peer", name, nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("lamport", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("sent_at", sa.Text(), nullable=False),
        sa.Column("attachments", sa.Text(), nullable=False),
        sa.Column("delivered_at", sa.Text(), nullable=True),
        sa.Column("read_at", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("archived_at", sa.BigInteger(), nullable=True),
        sa.Column("indexed", sa.Integer(), nullable=False),
    )
    op.create_index(
        "messages_by_name", "messages", ["community", "event_id", "author"], unique=True
    )
    op.create_index("messages_by_place", "messages", ["community", "lamport", "event_id"])
    op.create_index("messages_by_peer", "messages", ["community", "peer", "lamport", "event_id"])
    op.create_index("messages_by_client", "messages", ["community", "author", "client_id"])
    for index, columns, where in (
        ("messages_undelivered", ["community", "recipient"], "delivered_at IS NULL"),
        ("messages_not_indexed", ["community"], "indexed = 0"),
        ("messages_archived", ["community", "archived_at"], "archived_at IS NOT NULL"),
    ):
        condition = sa.text(where)
        op.create_index(
            index, "messages", columns, sqlite_where=condition, postgresql_where=condition
        )
    op.create_table(
        "message_files",
        sa.Column("message", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("cid", name, primary_key=True),
    )
    op.create_index("message_files_by_cid", "message_files", ["cid"])
    op.create_table(
        "message_words",
        sa.Column("word", sa.LargeBinary(8), primary_key=True),
        sa.Column("message", sa.BigInteger(), primary_key=True, autoincrement=False),
    )
    op.create_index("message_words_by_message", "message_words", ["message"])


def downgrade() -> None:
    """Drop the tables; messages that only the archive still had are lost."""
    op.drop_table("message_words")
    op.drop_table("message_files")
    op.drop_table("messages")
