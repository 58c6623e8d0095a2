"""The gateway's tables: events that it has taken, and actions that its agent has asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog
from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text

from accord.relay.rules.connection import backoff
from accord.storage import Schema, StoreError

T = TypeVar("T")
_log = structlog.stdlib.get_logger(__name__)
_metadata = MetaData()

events = Table(
    "events",
    _metadata,
    # Rises in the order in which events were taken.
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    # By these two a second delivery is known; they stay when the event is finished.
    Column("buffer_id", Text, unique=True),
    Column("message", Text, unique=True),
    Column("session_key", Text, nullable=False),
    # What was taken, as JSON; null once it is finished.
    Column("body", Text),
    Column("attempts", Integer, nullable=False),
    Column("taken_at", BigInteger, nullable=False),
    # A random name, by which the actions of its turn are known in every attempt.
    Column("turn", Text),
)
Index("events_by_time", events.c.taken_at)
_is_unfinished = events.c.body.is_not(None)
Index(
    "events_unfinished",
    events.c.number,
    sqlite_where=_is_unfinished,
    postgresql_where=_is_unfinished,
)

# What the agent has asked for and was told is taken; times in milliseconds. A lane is a chat, whose
# actions are sent in the order of their numbers. `written_at` is since when the connector may have
# received it without a known answer, `taken_at` when it said that it has queued it.
actions = Table(
    "actions",
    _metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("request_id", Text, nullable=False, unique=True),
    Column("lane", Text, nullable=False),
    # The frame as it is sent; null once it has ended.
    Column("line", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("written_at", BigInteger),
    Column("taken_at", BigInteger),
    # How it ended, as JSON, and when.
    Column("result", Text),
    Column("ended_at", BigInteger),
)
Index("actions_by_end", actions.c.ended_at)
_is_waiting = actions.c.ended_at.is_(None)
Index("actions_waiting", actions.c.number, sqlite_where=_is_waiting, postgresql_where=_is_waiting)

INBOX_SCHEMA: Final = Schema("gateway", _metadata, Path(__file__).parent / "migrations")


async def retry_store(work: Callable[[], Awaitable[T]], what: str) -> T:
    """Do something with the gateway's store, again while it fails."""
    attempt = 0
    while True:
        try:
            return await work()
        except StoreError as error:
            _log.error("the gateway's store failed", doing=what, reason=str(error))
        await asyncio.sleep(backoff(attempt, 1.0))
        attempt += 1
