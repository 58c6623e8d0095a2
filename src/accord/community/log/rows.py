"""How events become rows, and how rows are found again.

Owns every statement on the table of events that more than one part needs. Works on a connection
that it is given; commits nothing, checks no signature and judges nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    Column,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    tuple_,
)
from sqlalchemy import update as sql_update

from accord.community.envelope import KINDS, Event, Position, stored
from accord.community.log.tables import STREAM, communities, events
from accord.storage import Record, Rows, StoreError, journal

PAGE: Final = 500
"""How many rows are fetched at once: not many, since each may hold the largest of events."""

SLIM_PAGE: Final = 5000
"""How many rows without a body are."""

# Far below the number of parameters that either engine takes in one statement.
_LOOKUP: Final = 300

PLACE: Final[tuple[Column[Any], ...]] = (events.c.lamport, events.c.event_id, events.c.digest)
_ROWS = Rows(events)
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
    sql_update(events)
    .where(
        events.c.community == bindparam("of"),
        events.c.lamport == bindparam("at_lamport"),
        events.c.event_id == bindparam("at_event_id"),
        events.c.digest == bindparam("at_digest"),
    )
    .values(status=bindparam("new_status"), rule=bindparam("new_rule"))
)


@dataclass(frozen=True, slots=True)
class Proven:
    """An event whose every signature was checked, with its exact canonical JSON."""

    event: Event
    body: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the fold says of the event at a position."""

    position: Position
    status: str
    rule: str | None


def register(connection: Connection, community_id: str) -> int:
    """The number of a community in this store, given to it now where it has none."""
    found = select(communities.c.number).where(communities.c.id == community_id)
    number = connection.execute(found).scalar_one_or_none()
    if number is None:
        added = insert(communities).values(id=community_id).returning(communities.c.number)
        number = connection.execute(added).scalar_one()
    return int(number)


def stage_of(event_type: str) -> str:
    """Where the fold decides a type, or will, for all that can be told of an unknown one."""
    kind = KINDS.get(event_type)
    if kind is not None:
        return str(kind.stage.value)
    return "membership" if event_type.startswith("community.") else "content"


def add(
    connection: Connection, number: int, proven: Sequence[Proven], *, now_ms: int, source: str
) -> list[bool]:
    """Store the events that are not there yet, in table and journal, and say which those were."""
    highest = connection.execute(_HIGHEST, {"of": number}).scalar_one()
    # What is above all that is stored cannot be stored already.
    maybe = [
        each.event.position
        for each in proven
        if highest is not None and each.event.lamport <= highest
    ]
    known = present(connection, number, maybe)
    fresh: list[Proven] = []
    is_fresh = []
    for each in proven:
        # By digest alone: a signer may sign the same bytes twice with two signatures.
        new = each.event.position not in known
        is_fresh.append(new)
        if new:
            known.add(each.event.position)
            fresh.append(each)
    if fresh:
        records = [Record(STREAM, _name(each.event), now_ms, source, each.body) for each in fresh]
        arrivals = journal.append(connection, records)
        _displace_stubs(connection, number, [each.event for each in fresh])
        placed = zip(fresh, arrivals, strict=True)
        _ROWS.insert(connection, [_row(number, each, now_ms, arrival) for each, arrival in placed])
    return is_fresh


def _displace_stubs(connection: Connection, number: int, fresh: Sequence[Event]) -> None:
    """An event takes the place of whatever stub a peer gave for its number in the chain."""
    if connection.execute(_A_STUB, {"of": number}).first() is not None:
        connection.execute(
            _DISPLACE,
            [{"of": number, "by": event.author, "numbered": event.author_seq} for event in fresh],
        )


def _row(number: int, proven: Proven, now_ms: int, arrival: int) -> tuple[Any, ...]:
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


def _name(event: Event) -> str:
    # The time-sorted id leads, so that the journal's index grows at its end too.
    return f"{event.event_id}:{event.digest.hex()}"


def present(connection: Connection, number: int, positions: Sequence[Position]) -> set[Position]:
    """Which of these positions the log holds, but for stubs that a peer gave."""
    found: set[Position] = set()
    for part in slices(positions):
        query = select(*PLACE).where(
            events.c.community == number,
            events.c.arrival.is_not(None),
            tuple_(*PLACE).in_(part),
        )
        found.update(Position(*row) for row in connection.execute(query))
    return found


def slices(positions: Sequence[Position]) -> Iterator[Sequence[Position]]:
    """Positions in portions that fit into one statement."""
    for start in range(0, len(positions), _LOOKUP):
        yield positions[start : start + _LOOKUP]


def judge(connection: Connection, number: int, judgements: Iterable[Judgement]) -> None:
    """Write down what the fold says."""
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


def fallen(connection: Connection, number: int, since: Position | None) -> Iterator[Judgement]:
    """The written verdicts, behind a position, on events that do not stand."""
    query = select(*PLACE, events.c.status, events.c.rule).where(
        events.c.community == number, events.c.status != "accepted", events.c.body.is_not(None)
    )
    for lamport, event_id, digest, status, rule in rows(connection, query, since):
        yield Judgement(Position(lamport, event_id, digest), status, rule)


def last_arrival(connection: Connection, number: int) -> int:
    """The number of the event that came last; 0 in an empty log."""
    return connection.execute(_ARRIVED, {"of": number}).scalar_one() or 0


def arrived(
    connection: Connection, number: int, after: int, at_hand: Mapping[bytes, Event]
) -> tuple[int, Sequence[Event]]:
    """What came after an arrival: the last arrival, and the events.

    They are read only where they are not at hand, by digest.
    """
    found = connection.execute(_SINCE, {"of": number, "after": after}).all()
    last = max((arrival for arrival, _ in found), default=after)
    if all(digest in at_hand for _, digest in found):
        return last, [at_hand[digest] for _, digest in found]
    return last, list(read(connection, whole(number).where(events.c.arrival > after)))


def whole(number: int) -> Select[Any]:
    """Select place and body of every event of a community that has one."""
    return select(*PLACE, events.c.body).where(
        events.c.community == number, events.c.body.is_not(None)
    )


def in_order(query: Select[Any], after: Position | None = None) -> Select[Any]:
    """The total order over a query of events, from behind a position on."""
    return _sorted(query, PLACE, after)


def rows(
    connection: Connection,
    query: Select[Any],
    after: Position | None = None,
    *,
    key: Sequence[Column[Any]] = PLACE,
    page: int = PAGE,
) -> Iterator[Any]:
    """Give the rows of a query by a key that it selects, by default in total order.

    Pages are queries of their own: no cursor is left open where a reader stops early, and a
    server keeps nothing between them.
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


def read(
    connection: Connection, query: Select[Any], after: Position | None = None
) -> Iterator[Event]:
    """Give the events of a query of place and body, in total order.

    Raises:
        StoreError: One is damaged.
    """
    for _, event_id, digest, body in rows(connection, query, after):
        try:
            event = stored(body, digest)
        except (ValueError, KeyError, TypeError):
            raise StoreError(
                "an event in the store is damaged",
                where=f"event {event_id}",
                mend="run `accord community verify`, and restore the last good backup",
            ) from None
        yield event
