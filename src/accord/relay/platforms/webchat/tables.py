"""The tables of the web chat, and nothing that reads or writes them.

Times are milliseconds since the epoch. Secrets are kept as digests only.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from accord.storage import Schema

_metadata = MetaData()

# Users and bots alike, so that no two of them share a name.
accounts = Table(
    "accounts",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("is_bot", Boolean, nullable=False),
    Column("name", Text, nullable=False),
    Column("name_key", Text, nullable=False, unique=True),
    # Of the key by which a user comes back; null for bots and for users who were removed.
    Column("login_digest", Text, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Column("removed_at", BigInteger),
    # What the name looks like; null for what a process of an older version made.
    Column("look_key", Text),
)
Index("accounts_by_look", accounts.c.look_key)

sessions = Table(
    "sessions",
    _metadata,
    Column("digest", Text, primary_key=True),
    Column("user_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("sessions_by_user", sessions.c.user_id, sessions.c.expires_at)

spaces = Table(
    "spaces",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
)

members = Table(
    "members",
    _metadata,
    Column("user_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("space_id", Text, ForeignKey("spaces.id"), primary_key=True),
    Column("is_manager", Boolean, nullable=False),
)

invites = Table(
    "invites",
    _metadata,
    Column("digest", Text, primary_key=True),
    Column("space_id", Text, ForeignKey("spaces.id"), nullable=False),
    Column("is_manager", Boolean, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

# Channels, direct messages and threads: everything that has messages in it.
chats = Table(
    "chats",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("space_id", Text, ForeignKey("spaces.id")),
    # Of a channel only.
    Column("name", Text),
    Column("is_private", Boolean, nullable=False),
    # Of a thread only: its channel, and the message that it is about.
    Column("parent_id", Text, ForeignKey("chats.id")),
    Column("root_id", BigInteger, unique=True),
    # Of a direct chat only.
    Column("user_id", Text, ForeignKey("accounts.id")),
    Column("bot_id", Text, ForeignKey("accounts.id")),
    Column("created_at", BigInteger, nullable=False),
    UniqueConstraint("space_id", "name", name="chats_by_name"),
    UniqueConstraint("user_id", "bot_id", name="chats_direct"),
)

permissions = Table(
    "permissions",
    _metadata,
    Column("chat_id", Text, ForeignKey("chats.id"), primary_key=True),
    Column("user_id", Text, ForeignKey("accounts.id"), primary_key=True),
    Column("level", Integer, nullable=False),
)

messages = Table(
    "messages",
    _metadata,
    # The place in the feed at which it was posted.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("chat_id", Text, ForeignKey("chats.id"), nullable=False),
    Column("author_id", Text, ForeignKey("accounts.id"), nullable=False),
    Column("text", Text, nullable=False),
    Column("reply_to", BigInteger),
    Column("sent_at", BigInteger, nullable=False),
    Column("edited_at", BigInteger),
    # Its author's name for it, by which posting it again is known.
    Column("key", Text, nullable=False),
    # The bot that sees it, and whether it is spoken to.
    Column("bot_id", Text, ForeignKey("accounts.id")),
    Column("is_addressed", Boolean, nullable=False),
    # Whether the connector has it, or need not.
    Column("is_taken", Boolean, nullable=False),
    UniqueConstraint("chat_id", "author_id", "key", name="messages_by_key"),
)
Index("messages_by_chat", messages.c.chat_id, messages.c.id)
_is_waiting = messages.c.is_taken.is_(False)
Index(
    "messages_waiting",
    messages.c.bot_id,
    messages.c.id,
    sqlite_where=_is_waiting,
    postgresql_where=_is_waiting,
)

# What happened, in order of commit: what browsers are told, and may have missed.
feed = Table(
    "feed",
    _metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    # A chat; of a change of access, a space.
    Column("place", Text, nullable=False),
    Column("account_id", Text),
    Column("message_id", BigInteger),
    Column("at", BigInteger, nullable=False),
)

# The one row that whoever changes anything holds until the commit.
feed_head = Table(
    "feed_head",
    _metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
)

WEBCHAT: Final = Schema("webchat", _metadata, Path(__file__).parent / "migrations")
