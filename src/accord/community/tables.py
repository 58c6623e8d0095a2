"""The tables of the community store."""

from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

from accord.storage import Schema

EVENT_STREAM: Final = "community.events"
"""The journal stream of everything that entered a log, as exact JSON."""

# Ids are compared as bytes, whatever the server's collation.
_NAME = Text().with_variant(Text(collation="C"), "postgresql")

_metadata = MetaData()

communities = Table(
    "communities",
    _metadata,
    Column("number", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
)

events = Table(
    "events",
    _metadata,
    Column("community", Integer, primary_key=True, autoincrement=False),
    Column("lamport", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", _NAME, primary_key=True),
    Column("digest", LargeBinary(32), primary_key=True),
    Column("author", _NAME, nullable=False),
    Column("author_seq", BigInteger),
    Column("prev", Text),
    Column("event_type", Text, nullable=False),
    Column("stage", Text, nullable=False),
    # Exact canonical JSON; null in a stub.
    Column("body", Text),
    # The fold's verdict; a new row counts as accepted until it is folded.
    Column("status", Text, nullable=False),
    Column("rule", Text),
    Column("received_at", BigInteger, nullable=False),
    # Its number in the journal, in commit order; null in a stub from a peer.
    Column("arrival", BigInteger),
)
Index(
    "events_by_author",
    events.c.community,
    events.c.author,
    events.c.author_seq,
    events.c.digest,
)
Index("events_by_arrival", events.c.community, events.c.arrival)
_is_membership = events.c.stage == "membership"
Index(
    "events_of_membership",
    events.c.community,
    events.c.lamport,
    events.c.event_id,
    events.c.digest,
    sqlite_where=_is_membership,
    postgresql_where=_is_membership,
)

snapshots = Table(
    "snapshots",
    _metadata,
    Column("community", Integer, primary_key=True, autoincrement=False),
    Column("lamport", BigInteger, primary_key=True, autoincrement=False),
    Column("wall_clock", Text, nullable=False),
    Column("state", LargeBinary, nullable=False),
    # Whether bodies at or below it are pruned, so that nothing can be folded without it.
    Column("is_base", Boolean, nullable=False),
    # Both null in an unsigned snapshot.
    Column("author", Text),
    Column("signature", Text),
)

COMMUNITY_STORE: Final = Schema("community", _metadata, Path(__file__).parent / "migrations")
