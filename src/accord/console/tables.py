"""The console's store: conversations with their turns, and users."""

from pathlib import Path
from typing import Final

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, MetaData, Table, Text

from accord.storage import Schema

_metadata = MetaData()

conversations = Table(
    "conversations",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    # Where it looks, and which model answers; empty for all, and for the best.
    Column("corpus", Text, nullable=False),
    Column("model", Text, nullable=False),
    # Milliseconds since the epoch, here and below.
    Column("changed_at", BigInteger, nullable=False),
    # Whose it is; empty for whoever logs in without a user, who owns the station.
    Column("user_name", Text, nullable=False, server_default=""),
)
Index("conversations_by_user", conversations.c.user_name, conversations.c.changed_at)

turns = Table(
    "turns",
    _metadata,
    Column(
        "conversation", Text, ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True
    ),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("question", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("sources", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("problem", Text, nullable=False),
    Column("asked_at", BigInteger, nullable=False),
)

users = Table(
    "users",
    _metadata,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("added_at", BigInteger, nullable=False),
)

CONSOLE: Final = Schema("console", _metadata, Path(__file__).parent / "migrations")
