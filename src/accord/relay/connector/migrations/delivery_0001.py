"""What is owed to whom: queues, the buffer, receipts, chats, requests and leases."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0001"
down_revision = "control_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of the delivery half."""
    op.create_table(
        "queues",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("head", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("flipped", sa.Integer(), nullable=False),
        sa.Column("flipped_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("instance"),
    )
    op.create_table(
        "buffer",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("deliveries", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "dead_letters",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("deliveries", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("dead_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "seq"),
    )
    op.create_index("dead_letters_dead_at", "dead_letters", ["dead_at"])
    op.create_table(
        "receipts",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "bot_id", "event_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("receipts_received_at", "receipts", ["received_at"])
    op.create_table(
        "chats",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "platform", "chat_id", "session_key"),
        sqlite_with_rowid=False,
    )
    op.create_index("chats_delivered_at", "chats", ["delivered_at"])
    op.create_index("chats_session_key", "chats", ["instance", "session_key"])
    op.create_table(
        "messages",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "chat_id", "message_id"),
    )
    op.create_index("messages_sent_at", "messages", ["sent_at"])
    op.create_table(
        "requests",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "request_id"),
    )
    op.create_index("requests_asked_at", "requests", ["asked_at"])
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "resume_state",
        sa.Column("lease", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("lease", "name"),
    )
