"""The tables of a gateway's inbox, and nothing that reads or writes them."""

from pathlib import Path
from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text

from accord.storage import Schema

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
)
Index("events_by_time", events.c.taken_at)
_is_unfinished = events.c.body.is_not(None)
Index(
    "events_unfinished",
    events.c.number,
    sqlite_where=_is_unfinished,
    postgresql_where=_is_unfinished,
)

SCHEMA: Final = Schema("gateway", _metadata, Path(__file__).parent / "migrations")
