"""Accounts, spaces, chats, messages and the feed."""

import sqlalchemy as sa
from alembic import op

revision = "webchat_0001"
down_revision = None
branch_labels = ("webchat",)
depends_on = None


def upgrade() -> None:
    """Create the tables of the web chat."""
    op.create_table(
        "accounts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("is_bot", sa.Boolean(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_key", sa.Text(), nullable=False),
        sa.Column("login_digest", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("removed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name_key"),
        sa.UniqueConstraint("login_digest"),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sa.ForeignKeyConstraint(["user_id"], ["accounts.id"]),
    )
    op.create_index("sessions_by_user", "sessions", ["user_id", "expires_at"])
    op.create_table(
        "spaces",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "members",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("space_id", sa.Text(), nullable=False),
        sa.Column("is_manager", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("user_id", "space_id"),
        sa.ForeignKeyConstraint(["user_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["space_id"], ["spaces.id"]),
    )
    op.create_table(
        "invites",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("space_id", sa.Text(), nullable=False),
        sa.Column("is_manager", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sa.ForeignKeyConstraint(["space_id"], ["spaces.id"]),
    )
    _chats()
    _messages()
    op.create_table(
        "feed",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=True),
        sa.Column("message_id", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    head = op.create_table(
        "feed_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.bulk_insert(head, [{"id": 1, "seq": 0}])


def _chats() -> None:
    op.create_table(
        "chats",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("space_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("is_private", sa.Boolean(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("root_id", sa.BigInteger(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("bot_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["space_id"], ["spaces.id"]),
        sa.ForeignKeyConstraint(["parent_id"], ["chats.id"]),
        sa.ForeignKeyConstraint(["user_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["bot_id"], ["accounts.id"]),
        sa.UniqueConstraint("root_id"),
        sa.UniqueConstraint("space_id", "name", name="chats_by_name"),
        sa.UniqueConstraint("user_id", "bot_id", name="chats_direct"),
    )
    op.create_table(
        "permissions",
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("chat_id", "user_id"),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"]),
        sa.ForeignKeyConstraint(["user_id"], ["accounts.id"]),
    )


def _messages() -> None:
    op.create_table(
        "messages",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("chat_id", sa.Text(), nullable=False),
        sa.Column("author_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("reply_to", sa.BigInteger(), nullable=True),
        sa.Column("sent_at", sa.BigInteger(), nullable=False),
        sa.Column("edited_at", sa.BigInteger(), nullable=True),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), nullable=True),
        sa.Column("is_addressed", sa.Boolean(), nullable=False),
        sa.Column("is_taken", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["chat_id"], ["chats.id"]),
        sa.ForeignKeyConstraint(["author_id"], ["accounts.id"]),
        sa.ForeignKeyConstraint(["bot_id"], ["accounts.id"]),
        sa.UniqueConstraint("chat_id", "author_id", "key", name="messages_by_key"),
    )
    op.create_index("messages_by_chat", "messages", ["chat_id", "id"])
    is_waiting = sa.column("is_taken").is_(False)
    op.create_index(
        "messages_waiting",
        "messages",
        ["bot_id", "id"],
        sqlite_where=is_waiting,
        postgresql_where=is_waiting,
    )
