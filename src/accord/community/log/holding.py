"""What a node and reconciliation read: which logs there are, and what each holds."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, select, tuple_

from accord.community.envelope import Position
from accord.community.log import rows
from accord.community.log.stubs import Stub
from accord.community.log.tables import communities, events
from accord.community.reconcile import Body, Item


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
        query = select(events).where(events.c.community == number, tuple_(*rows.PLACE).in_(part))
        found = {
            (row.lamport, row.event_id, bytes(row.digest)): row for row in connection.execute(query)
        }
        for item in part:
            row = found.get((item[0], item[1], bytes(item[2])))
            if row is None:
                yield None
            elif row.body is not None:
                yield Body(row.body.encode())
            else:
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
                yield Body(stub.encode(), is_stub=True)
