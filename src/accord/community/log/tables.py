"""The tables of the community's store, and nothing that reads or writes them.

One store serves every community of a node. Each table leads its key with the community's number,
so that logs share a file or a database, a writer and its commits, and never each other's rows.

The place of an event in the total order is its key: what arrives mostly rises, so that the index
grows at its end, while an index of digests alone would touch a page of its own for every event.
"""

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

STREAM: Final = "community.events"
"""The journal stream of everything that entered a log, as exact JSON."""

# Ids are compared as bytes; a server's language must not reorder a log.
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
    # The fold's verdict. A new row is taken to stand until the fold, at once, says otherwise.
    Column("status", Text, nullable=False),
    Column("rule", Text),
    Column("received_at", BigInteger, nullable=False),
    # Its number in the journal, which rises in commit order; null in a stub that a peer gave.
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
    # Both null in a snapshot that only this node relies on.
    Column("author", Text),
    Column("signature", Text),
)

SCHEMA: Final = Schema("community", _metadata, Path(__file__).parent / "migrations")
