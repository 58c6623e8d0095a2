"""How events become rows, and how rows are found again.

Owns every statement on the table of events that more than one part needs. Works on a connection
that it is given; commits nothing, checks no signature and judges nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
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
from accord.storage import Record, journal

PAGE: Final = 2000
"""How many rows are fetched at once."""

# Far below the number of parameters that either engine takes in one statement.
_LOOKUP: Final = 300

_INSERT = insert(events)
_PLACE = (events.c.lamport, events.c.event_id, events.c.digest)
_COLUMNS = tuple(column.name for column in events.columns)
_HIGHEST = select(func.max(events.c.lamport)).where(events.c.community == bindparam("of"))
_of_peers = (events.c.community == bindparam("of"), events.c.arrival.is_(None))
_A_STUB = select(literal(1)).where(*_of_peers).limit(1)
_DISPLACE = delete(events).where(
    *_of_peers,
    events.c.author == bindparam("by"),
    events.c.author_seq == bindparam("numbered"),
)
_ARRIVED = select(func.max(events.c.arrival)).where(events.c.community == bindparam("of"))
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
        _insert(connection, [_row(number, each, now_ms, arrival) for each, arrival in placed])
    return is_fresh


def _displace_stubs(connection: Connection, number: int, fresh: Sequence[Event]) -> None:
    """An event takes the place of whatever stub a peer gave for its number in the chain."""
    if connection.execute(_A_STUB, {"of": number}).first() is not None:
        connection.execute(
            _DISPLACE,
            [{"of": number, "by": event.author, "numbered": event.author_seq} for event in fresh],
        )


def _insert(connection: Connection, new: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows by the bare driver: naming every value of every row would cost more."""
    compiled = _INSERT.compile(dialect=connection.dialect)
    if compiled.positiontup is not None:
        connection.exec_driver_sql(str(compiled), list(new))
    else:
        connection.execute(_INSERT, [dict(zip(_COLUMNS, row, strict=True)) for row in new])


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
        query = select(*_PLACE).where(
            events.c.community == number,
            events.c.arrival.is_not(None),
            tuple_(*_PLACE).in_(part),
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
    query = select(*_PLACE, events.c.status, events.c.rule).where(
        events.c.community == number, events.c.status != "accepted", events.c.body.is_not(None)
    )
    for lamport, event_id, digest, status, rule in connection.execute(in_order(query, since)).all():
        yield Judgement(Position(lamport, event_id, digest), status, rule)


def last_arrival(connection: Connection, number: int) -> int:
    """The number of the event that came last; 0 in an empty log."""
    return connection.execute(_ARRIVED, {"of": number}).scalar_one() or 0


def whole(number: int) -> Select[Any]:
    """Select digest and body of every event of a community that has one."""
    return select(events.c.digest, events.c.body).where(
        events.c.community == number, events.c.body.is_not(None)
    )


def in_order(query: Select[Any], after: Position | None = None) -> Select[Any]:
    """The total order over a query of events, from behind a position on."""
    if after is not None:
        # The first condition is implied by the second; it is what both engines use an index for.
        query = query.where(events.c.lamport >= after.lamport, tuple_(*_PLACE) > tuple(after))
    return query.order_by(*_PLACE)


def rows(connection: Connection, query: Select[Any]) -> Iterator[Any]:
    """Run a query and give its rows one by one, holding a page at a time."""
    options = {"yield_per": PAGE}
    with closing(connection.execute(query, execution_options=options)) as result:
        for part in result.partitions():
            yield from part


def read(connection: Connection, query: Select[Any]) -> Iterator[Event]:
    """Run a query of digest and body, and give its events."""
    return (stored(body, digest) for digest, body in rows(connection, query))
