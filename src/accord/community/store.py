"""The community store: its tables, and queries on events, verdicts, snapshots and stubs.

`StoreHistory` is a log as the rules read it. Events are read in total order, one page at a time.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from accord.community.rules.chains import MEMBERSHIP_TYPES, ChainLink
from accord.community.rules.event import Event, Position, read_stored_event
from accord.community.rules.formats import EVENT_TYPES
from accord.community.rules.reconcile import SyncBody, SyncItem
from accord.community.rules.snapshots import SNAPSHOTS_KEPT, Snapshot, Stub
from accord.storage import BulkInsert, JournalRecord, Schema, StoreError, journal

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

messages = Table(
    "messages",
    _metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("community", Integer, nullable=False),
    Column("event_id", _NAME, nullable=False),
    Column("author", _NAME, nullable=False),
    Column("recipient", _NAME, nullable=False),
    # Whoever is not this node, or this node in a message to itself.
    Column("peer", _NAME, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("lamport", BigInteger, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("sent_at", Text, nullable=False),
    Column("attachments", Text, nullable=False),
    Column("delivered_at", Text),
    Column("read_at", Text),
    # The event's body once the log has dropped it, and when that was.
    Column("body", Text),
    Column("archived_at", BigInteger),
    Column("indexed", Integer, nullable=False),
)
Index(
    "messages_by_name",
    messages.c.community,
    messages.c.event_id,
    messages.c.author,
    unique=True,
)
Index("messages_by_place", messages.c.community, messages.c.lamport, messages.c.event_id)
Index(
    "messages_by_peer",
    messages.c.community,
    messages.c.peer,
    messages.c.lamport,
    messages.c.event_id,
)
Index("messages_by_client", messages.c.community, messages.c.author, messages.c.client_id)
_is_undelivered = messages.c.delivered_at.is_(None)
Index(
    "messages_undelivered",
    messages.c.community,
    messages.c.recipient,
    sqlite_where=_is_undelivered,
    postgresql_where=_is_undelivered,
)
_is_new = messages.c.indexed == 0
Index(
    "messages_not_indexed",
    messages.c.community,
    sqlite_where=_is_new,
    postgresql_where=_is_new,
)
_is_archived = messages.c.archived_at.is_not(None)
Index(
    "messages_archived",
    messages.c.community,
    messages.c.archived_at,
    sqlite_where=_is_archived,
    postgresql_where=_is_archived,
)

message_files = Table(
    "message_files",
    _metadata,
    Column("message", BigInteger, primary_key=True, autoincrement=False),
    Column("cid", _NAME, primary_key=True),
)
Index("message_files_by_cid", message_files.c.cid)

# Keyed digests of words: the text itself is never stored in the clear.
message_words = Table(
    "message_words",
    _metadata,
    Column("word", LargeBinary(8), primary_key=True),
    Column("message", BigInteger, primary_key=True, autoincrement=False),
)
Index("message_words_by_message", message_words.c.message)

COMMUNITY_STORE: Final = Schema("community", _metadata, Path(__file__).parent / "migrations")


PAGE: Final = 500
"""How many rows are fetched at once: not many, since each may hold the largest of events."""

SLIM_PAGE: Final = 5000
"""How many rows without a body are."""

# Far below the parameter limit of either engine.
_LOOKUP: Final = 300

PLACE: Final[tuple[Column[Any], ...]] = (events.c.lamport, events.c.event_id, events.c.digest)
_ROWS = BulkInsert(events)
_HIGHEST = select(func.max(events.c.lamport)).where(events.c.community == bindparam("of"))
_of_peers = (events.c.community == bindparam("of"), events.c.arrival.is_(None))
_A_STUB = select(literal(1)).where(*_of_peers).limit(1)
_DISPLACE = delete(events).where(
    *_of_peers,
    events.c.author == bindparam("by"),
    events.c.author_seq == bindparam("numbered"),
)
_ARRIVED = select(func.max(events.c.arrival)).where(events.c.community == bindparam("of"))
_SINCE = select(events.c.arrival, events.c.digest).where(
    events.c.community == bindparam("of"),
    events.c.arrival > bindparam("after"),
    events.c.body.is_not(None),
)
_VERDICT = (
    update(events)
    .where(
        events.c.community == bindparam("of"),
        events.c.lamport == bindparam("at_lamport"),
        events.c.event_id == bindparam("at_event_id"),
        events.c.digest == bindparam("at_digest"),
    )
    .values(status=bindparam("new_status"), rule=bindparam("new_rule"))
)


@dataclass(frozen=True, slots=True)
class ProvenEvent:
    """A verified event with its canonical JSON."""

    event: Event
    body: str


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """The verdict on the event at a position."""

    position: Position
    status: str
    rule: str | None


def taken_since(connection: Connection, number: int, since_ms: int) -> list[tuple[str, str, int]]:
    """Author, stage and size of everything that arrived since a moment."""
    query = (
        select(
            events.c.author,
            events.c.stage,
            func.coalesce(func.length(events.c.body), 0),
            events.c.received_at,
        )
        .where(events.c.community == number, events.c.arrival.is_not(None))
        .order_by(events.c.arrival.desc())
    )
    with connection.execution_options(yield_per=SLIM_PAGE).execute(query) as found:
        # Arrivals rise with time, so reading stops at the first older one.
        return [
            (row[0], row[1], row[2])
            for row in itertools.takewhile(lambda row: row.received_at >= since_ms, found)
        ]


def register_community(connection: Connection, community_id: str) -> int:
    """The number of a community in this store, assigned if it has none."""
    found = select(communities.c.number).where(communities.c.id == community_id)
    number = connection.execute(found).scalar_one_or_none()
    if number is None:
        added = insert(communities).values(id=community_id).returning(communities.c.number)
        number = connection.execute(added).scalar_one()
    return int(number)


def stage_of(event_type: str) -> str:
    """The fold stage of an event type; for an unknown type the one that its name implies."""
    kind = EVENT_TYPES.get(event_type)
    if kind is not None:
        return str(kind.stage.value)
    return "membership" if event_type.startswith("community.") else "content"


def insert_events(
    connection: Connection, number: int, proven: Sequence[ProvenEvent], *, now_ms: int, source: str
) -> list[bool]:
    """Insert the new events into table and journal; returns for each whether it was new."""
    highest = connection.execute(_HIGHEST, {"of": number}).scalar_one()
    # Events above everything stored cannot be duplicates.
    maybe = [
        each.event.position
        for each in proven
        if highest is not None and each.event.lamport <= highest
    ]
    known = present_positions(connection, number, maybe)
    fresh: list[ProvenEvent] = []
    is_fresh = []
    for each in proven:
        # By digest alone: a signer may sign the same bytes twice with two signatures.
        new = each.event.position not in known
        is_fresh.append(new)
        if new:
            known.add(each.event.position)
            fresh.append(each)
    if fresh:
        records = [
            JournalRecord(EVENT_STREAM, _row_name(each.event), now_ms, source, each.body)
            for each in fresh
        ]
        arrivals = journal.append(connection, records)
        _displace_stubs(connection, number, [each.event for each in fresh])
        placed = zip(fresh, arrivals, strict=True)
        _ROWS.insert(
            connection, [_event_row(number, each, now_ms, arrival) for each, arrival in placed]
        )
    return is_fresh


def _displace_stubs(connection: Connection, number: int, fresh: Sequence[Event]) -> None:
    """Delete stubs from peers whose number in the chain an event takes."""
    if connection.execute(_A_STUB, {"of": number}).first() is not None:
        connection.execute(
            _DISPLACE,
            [{"of": number, "by": event.author, "numbered": event.author_seq} for event in fresh],
        )


def _event_row(number: int, proven: ProvenEvent, now_ms: int, arrival: int) -> tuple[Any, ...]:
    event = proven.event
    return (
        number,
        event.lamport,
        event.event_id,
        event.digest,
        event.author,
        event.author_seq,
        event.prev,
        event.event_type,
        stage_of(event.event_type),
        proven.body,
        "accepted",
        None,
        now_ms,
        arrival,
    )


def _row_name(event: Event) -> str:
    # The time-sorted id leads, so that the journal's index grows at its end too.
    return f"{event.event_id}:{event.digest.hex()}"


def present_positions(
    connection: Connection, number: int, positions: Sequence[Position]
) -> set[Position]:
    """Which of these positions the log has, not counting stubs from peers."""
    found: set[Position] = set()
    for part in position_slices(positions):
        query = select(*PLACE).where(
            events.c.community == number,
            events.c.arrival.is_not(None),
            tuple_(*PLACE).in_(part),
        )
        found.update(Position(*row) for row in connection.execute(query))
    return found


def position_slices(positions: Sequence[Position]) -> Iterator[Sequence[Position]]:
    """Positions in portions that fit into one statement."""
    for start in range(0, len(positions), _LOOKUP):
        yield positions[start : start + _LOOKUP]


def write_verdicts(
    connection: Connection, number: int, judgements: Iterable[StoredVerdict]
) -> None:
    """Store verdicts."""
    rows = [
        {
            "of": number,
            "at_lamport": each.position.lamport,
            "at_event_id": each.position.event_id,
            "at_digest": each.position.digest,
            "new_status": each.status,
            "new_rule": each.rule,
        }
        for each in judgements
    ]
    if rows:
        connection.execute(_VERDICT, rows)


def refused_events(
    connection: Connection, number: int, since: Position | None
) -> Iterator[StoredVerdict]:
    """The stored verdicts other than accepted, after a position."""
    query = select(*PLACE, events.c.status, events.c.rule).where(
        events.c.community == number, events.c.status != "accepted", events.c.body.is_not(None)
    )
    for lamport, event_id, digest, status, rule in read_rows(connection, query, since):
        yield StoredVerdict(Position(lamport, event_id, digest), status, rule)


def last_arrival(connection: Connection, number: int) -> int:
    """The arrival number of the last event; 0 in an empty log."""
    return connection.execute(_ARRIVED, {"of": number}).scalar_one() or 0


def arrived_since(
    connection: Connection, number: int, after: int, at_hand: Mapping[bytes, Event]
) -> tuple[int, Sequence[Event]]:
    """The last arrival, and the events after `after`; those in `at_hand` are not read."""
    found = connection.execute(_SINCE, {"of": number, "after": after}).all()
    last = max((arrival for arrival, _ in found), default=after)
    if all(digest in at_hand for _, digest in found):
        return last, [at_hand[digest] for _, digest in found]
    return last, list(
        read_events(connection, select_bodies(number).where(events.c.arrival > after))
    )


def select_bodies(number: int) -> Select[Any]:
    """Select position and body of every event of a community that has a body."""
    return select(*PLACE, events.c.body).where(
        events.c.community == number, events.c.body.is_not(None)
    )


def in_total_order(query: Select[Any], after: Position | None = None) -> Select[Any]:
    """Order a query of events, starting after a position."""
    return _sorted(query, PLACE, after)


def read_rows(
    connection: Connection,
    query: Select[Any],
    after: Position | None = None,
    *,
    key: Sequence[Column[Any]] = PLACE,
    page: int = PAGE,
) -> Iterator[Any]:
    """Yield the rows of a query ordered by `key`, by default in total order.

    Each page is a query of its own, so no cursor stays open if a reader stops early.
    """
    last: Sequence[Any] | None = after
    while True:
        found = connection.execute(_sorted(query, key, last).limit(page)).all()
        yield from found
        if len(found) < page:
            return
        last = [found[-1]._mapping[column] for column in key]  # noqa: SLF001 - public, says its docs


def _sorted(
    query: Select[Any], key: Sequence[Column[Any]], after: Sequence[Any] | None
) -> Select[Any]:
    if after is not None:
        # The first condition is implied by the second; it is what both engines use an index for.
        query = query.where(key[0] >= after[0], tuple_(*key) > tuple(after))
    return query.order_by(*key)


def read_events(
    connection: Connection, query: Select[Any], after: Position | None = None
) -> Iterator[Event]:
    """Yield the events of a query in total order; raises `StoreError` if one is damaged."""
    for _, event_id, digest, body in read_rows(connection, query, after):
        try:
            event = read_stored_event(body, digest)
        except (ValueError, KeyError, TypeError):
            raise StoreError(
                "an event in the store is damaged",
                where=f"event {event_id}",
                mend="run `accord community verify`, and restore the last good backup",
            ) from None
        yield event


# By author, the number and hash of the last event that counts.
ChainHeads: TypeAlias = Mapping[str, tuple[int, str]]

_LINK = (events.c.author, events.c.author_seq, events.c.digest, events.c.prev, events.c.lamport)
_CHAINED = (events.c.author, events.c.author_seq, events.c.digest)
_UNCHAINED = (events.c.author, events.c.digest)


@dataclass(frozen=True, slots=True)
class StoreHistory:
    """The stored events of one community as a `History`.

    Only events at or below the lamport `upto`, and within the chain `heads` of a retention floor.
    """

    connection: Connection
    number: int
    _: KW_ONLY
    upto: int | None = None
    heads: ChainHeads | None = None

    def authors(self) -> Iterator[ChainLink]:
        """Every link, grouped by author, ordered by number and digest."""
        return self._links(select(*_LINK))

    def author(self, author: str, after: int = 0) -> Iterator[ChainLink]:
        """The links of one author by number and digest, optionally only above a number."""
        query = select(*_LINK).where(events.c.author == author)
        return self._links(query.where(events.c.author_seq > after) if after else query)

    def membership(self) -> Iterator[Event]:
        """The events of the membership stage, in total order."""
        query = select_bodies(self.number).where(events.c.stage == "membership")
        found = self._events(query)
        return (event for event in found if event.event_type in MEMBERSHIP_TYPES)

    def in_order(self, after: Position | None = None) -> Iterator[Event]:
        """Every event after a position, in total order, without pruned ones."""
        return self._events(select_bodies(self.number), after)

    def lamports(self) -> Iterator[int]:
        """The lamports of all events and stubs, ascending."""
        query = select(*PLACE).where(events.c.community == self.number)
        return map(itemgetter(0), self._slim(self._bounded(query), PLACE))

    def _links(self, query: Select[Any]) -> Iterator[ChainLink]:
        query = self._bounded(query.where(events.c.community == self.number))
        chained = self._slim(query.where(events.c.author_seq.is_not(None)), _CHAINED)
        unchained = self._slim(query.where(events.c.author_seq.is_(None)), _UNCHAINED)
        if (first := next(unchained, None)) is not None:
            others = itertools.chain([first], unchained)
            chained = heapq.merge(others, chained, key=itemgetter(0))
        links = map(ChainLink._make, chained)
        if self.heads is None:
            return links
        return filter(self._is_within, links)

    def _events(self, query: Select[Any], after: Position | None = None) -> Iterator[Event]:
        found = read_events(self.connection, self._bounded(query), after)
        if self.heads is None:
            return found
        return filter(self._is_within, found)

    def _slim(self, query: Select[Any], key: Sequence[Column[Any]]) -> Iterator[Any]:
        return read_rows(self.connection, query, key=key, page=SLIM_PAGE)

    def _bounded(self, query: Select[Any]) -> Select[Any]:
        return query if self.upto is None else query.where(events.c.lamport <= self.upto)

    def _is_within(self, one: ChainLink | Event) -> bool:
        heads = self.heads or {}
        last, head = heads.get(one.author, (0, ""))
        if one.author_seq is None or one.author_seq == last:
            return one.author_seq is not None and head == "blake3:" + one.digest.hex()
        return one.author_seq < last


_BODIES = select(*PLACE, events.c.body)


def known_communities(connection: Connection) -> list[str]:
    """The ids of the communities with a log in this store."""
    return list(connection.execute(select(communities.c.id).order_by(communities.c.id)).scalars())


def sync_items(connection: Connection, number: int) -> Iterator[SyncItem]:
    """The positions of a log in total order."""
    query = select(*PLACE).where(events.c.community == number)
    for row in read_rows(connection, query, page=SLIM_PAGE):
        yield row[0], row[1], bytes(row[2])


def sync_bodies(
    connection: Connection, number: int, wanted: Sequence[SyncItem]
) -> Iterator[SyncBody | None]:
    """The bodies of items in order, read lazily."""
    for part in position_slices([Position(*item) for item in wanted]):
        found = {
            (row[0], row[1], bytes(row[2])): row.body
            for row in connection.execute(_where(number, part))
        }
        for item in part:
            place = (item[0], item[1], bytes(item[2]))
            if place not in found:
                yield None
            elif found[place] is not None:
                yield SyncBody(found[place].encode())
            else:
                yield _stub(connection, number, place)


def events_for_seed(
    connection: Connection, number: int, above: int, since: int | None, after: Position | None
) -> Iterator[tuple[Position, bytes]]:
    """Events above a lamport, or that arrived after a number; in total order after a position."""
    wanted = events.c.lamport > above
    if since is not None:
        wanted = or_(wanted, events.c.arrival > since)
    query = select_bodies(number).where(wanted)
    for row in read_rows(connection, query, after, page=PAGE):
        yield Position(row[0], row[1], bytes(row[2])), row.body.encode()


def _where(number: int, part: Sequence[tuple[int, str, bytes]]) -> Select[Any]:
    """A condition for some positions; it may match a few more."""
    lamports = sorted({item[0] for item in part})
    # By lamport alone is much faster, unless very many events share one.
    if 2 * len(lamports) < len(part):
        return _BODIES.where(events.c.community == number, tuple_(*PLACE).in_(part))
    return _BODIES.where(events.c.community == number, events.c.lamport.in_(lamports))


def _stub(connection: Connection, number: int, place: tuple[int, str, bytes]) -> SyncBody | None:
    query = select(events).where(events.c.community == number, tuple_(*PLACE).in_([place]))
    row = connection.execute(query).first()
    if row is None:
        return None
    stub = Stub(
        row.lamport,
        row.event_id,
        "blake3:" + bytes(row.digest).hex(),
        row.author,
        row.author_seq,
        row.prev,
        row.event_type,
        row.status,
        row.rule,
    )
    return SyncBody(stub.encode(), is_stub=True)


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A stored snapshot; unsigned if only this node knows it."""

    lamport: int
    wall_clock: str
    state: bytes
    is_base: bool
    author: str | None = None
    signature: str | None = None

    def signed(self, community_id: str) -> Snapshot | None:
        """The snapshot for other nodes; None if it is not signed."""
        if self.author is None or self.signature is None:
            return None
        return Snapshot(
            community_id,
            self.lamport,
            self.wall_clock,
            self.state,
            self.author,
            self.signature,
        )


def add_events(
    connection: Connection, number: int, proven: Sequence[ProvenEvent], *, now_ms: int, source: str
) -> list[bool]:
    """Store events, and drop the snapshots that now lack one; see `insert_events`."""
    is_fresh = insert_events(connection, number, proven, now_ms=now_ms, source=source)
    fresh = [each.event.lamport for each, new in zip(proven, is_fresh, strict=True) if new]
    if fresh:
        late = snapshots.c.lamport >= min(fresh)
        connection.execute(
            delete(snapshots).where(snapshots.c.community == number, late, ~snapshots.c.is_base)
        )
    return is_fresh


def newest_snapshot(
    connection: Connection, number: int, *, below: int | None = None
) -> StoredSnapshot | None:
    """The newest snapshot, or the newest at or below a lamport."""
    query = select(snapshots).where(snapshots.c.community == number)
    if below is not None:
        query = query.where(snapshots.c.lamport <= below)
    row = connection.execute(query.order_by(snapshots.c.lamport.desc()).limit(1)).first()
    return None if row is None else _read_snapshot(row)


def base_snapshot(connection: Connection, number: int) -> StoredSnapshot | None:
    """The snapshot that stands for pruned bodies."""
    query = select(snapshots).where(snapshots.c.community == number, snapshots.c.is_base)
    row = connection.execute(query.order_by(snapshots.c.lamport.desc()).limit(1)).first()
    return None if row is None else _read_snapshot(row)


def all_snapshots(connection: Connection, number: int) -> list[StoredSnapshot]:
    """All snapshots, newest first."""
    query = select(snapshots).where(snapshots.c.community == number)
    return [
        _read_snapshot(row)
        for row in connection.execute(query.order_by(snapshots.c.lamport.desc()))
    ]


def signed_lamports(connection: Connection, number: int) -> list[int]:
    """The lamports of the signed snapshots, newest first."""
    query = select(snapshots.c.lamport).where(
        snapshots.c.community == number, snapshots.c.signature.is_not(None)
    )
    return list(connection.execute(query.order_by(snapshots.c.lamport.desc())).scalars())


def snapshot_at(connection: Connection, number: int, lamport: int) -> StoredSnapshot | None:
    """The snapshot at a lamport."""
    query = select(snapshots).where(snapshots.c.community == number, snapshots.c.lamport == lamport)
    row = connection.execute(query).first()
    return None if row is None else _read_snapshot(row)


def store_snapshot(
    connection: Connection, number: int, kept: StoredSnapshot, *, arrival: int
) -> bool:
    """Store a snapshot and drop the oldest ones.

    Returns False, storing nothing, if something arrived after `arrival`.
    """
    lacking = select(literal(1)).where(
        events.c.community == number,
        events.c.arrival > arrival,
        events.c.lamport <= kept.lamport,
    )
    if connection.execute(lacking.limit(1)).first() is not None:
        return False
    same = and_(snapshots.c.community == number, snapshots.c.lamport == kept.lamport)
    connection.execute(delete(snapshots).where(same))
    connection.execute(
        insert(snapshots).values(
            community=number,
            lamport=kept.lamport,
            wall_clock=kept.wall_clock,
            state=kept.state,
            is_base=kept.is_base,
            author=kept.author,
            signature=kept.signature,
        )
    )
    in_use = (
        select(snapshots.c.lamport)
        .where(snapshots.c.community == number)
        .order_by(snapshots.c.lamport.desc())
        .limit(SNAPSHOTS_KEPT)
    )
    connection.execute(
        delete(snapshots).where(
            snapshots.c.community == number,
            ~snapshots.c.is_base,
            snapshots.c.lamport.not_in(in_use.scalar_subquery()),
        )
    )
    return True


def prune_bodies(connection: Connection, number: int, kept: StoredSnapshot, *, arrival: int) -> int:
    """Drop the bodies of content that a base snapshot covers; returns how many."""
    if not store_snapshot(connection, number, kept, arrival=arrival):
        return 0
    older = and_(snapshots.c.community == number, snapshots.c.lamport < kept.lamport)
    connection.execute(delete(snapshots).where(older))
    dropped = connection.execute(
        update(events)
        .where(
            events.c.community == number,
            events.c.lamport <= kept.lamport,
            events.c.stage == "content",
            events.c.body.is_not(None),
        )
        .values(body=None)
    )
    return int(dropped.rowcount)


def add_stubs(
    connection: Connection, number: int, stubs: Sequence[Stub], *, now_ms: int
) -> list[Stub]:
    """Store stubs whose number no event or stub has; returns for each whether it was stored."""
    new = []
    for stub in stubs:
        position = stub.position
        taken = select(literal(1)).where(
            events.c.community == number,
            events.c.author == stub.author,
            events.c.author_seq == stub.author_seq,
        )
        if connection.execute(taken.limit(1)).first() is None:
            new.append(stub)
            connection.execute(
                insert(events).values(
                    community=number,
                    lamport=position.lamport,
                    event_id=position.event_id,
                    digest=position.digest,
                    author=stub.author,
                    author_seq=stub.author_seq,
                    prev=stub.prev,
                    event_type=stub.event_type,
                    stage="content",
                    body=None,
                    status=stub.verdict,
                    rule=stub.rule,
                    received_at=now_ms,
                    arrival=None,
                )
            )
    return new


def lamport_settled_by(connection: Connection, number: int, before_ms: int) -> int | None:
    """The greatest lamport that arrived before a moment and is not quarantined."""
    query = select(func.max(events.c.lamport)).where(
        events.c.community == number,
        events.c.received_at < before_ms,
        events.c.status != "quarantined",
    )
    lamport: int | None = connection.execute(query).scalar_one()
    return lamport


def _read_snapshot(row: Row[tuple[object, ...]]) -> StoredSnapshot:
    return StoredSnapshot(
        row.lamport, row.wall_clock, bytes(row.state), row.is_base, row.author, row.signature
    )
