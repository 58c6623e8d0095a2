"""What a node and reconciliation read: which logs there are, and what each holds."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, select, tuple_

from accord.community.envelope import Position
from accord.community.log import rows
from accord.community.log.stubs import Stub
from accord.community.log.tables import communities, events
from accord.community.reconcile import Body, Item

_BODIES = select(*rows.PLACE, events.c.body)


def known(connection: Connection) -> list[str]:
    """The ids of the communities that the store has logs of."""
    return list(connection.execute(select(communities.c.id).order_by(communities.c.id)).scalars())


def items(connection: Connection, number: int) -> Iterator[Item]:
    """The place of everything in a log, in total order."""
    query = select(*rows.PLACE).where(events.c.community == number)
    for row in rows.rows(connection, query, page=rows.SLIM_PAGE):
        yield row[0], row[1], bytes(row[2])


def bodies(connection: Connection, number: int, wanted: Sequence[Item]) -> Iterator[Body | None]:
    """The bodies of items, in order; read only as far as they are asked for."""
    for part in rows.slices([Position(*item) for item in wanted]):
        found = {
            (row[0], row[1], bytes(row[2])): row.body
            for row in connection.execute(_where(number, part))
        }
        for item in part:
            place = (item[0], item[1], bytes(item[2]))
            if place not in found:
                yield None
            elif found[place] is not None:
                yield Body(found[place].encode())
            else:
                yield _stub(connection, number, place)


def _where(number: int, part: Sequence[tuple[int, str, bytes]]) -> Select[Any]:
    """The rows of some places, and perhaps a few more."""
    lamports = sorted({item[0] for item in part})
    # By lamport alone is quicker by far, unless somebody has put very many events on one.
    if 2 * len(lamports) < len(part):
        return _BODIES.where(events.c.community == number, tuple_(*rows.PLACE).in_(part))
    return _BODIES.where(events.c.community == number, events.c.lamport.in_(lamports))


def _stub(connection: Connection, number: int, place: tuple[int, str, bytes]) -> Body | None:
    query = select(events).where(events.c.community == number, tuple_(*rows.PLACE).in_([place]))
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
    return Body(stub.encode(), is_stub=True)
