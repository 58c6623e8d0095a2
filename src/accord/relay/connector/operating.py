"""What only an operator asks of the store: tokens that are out, late events, dead letters dropped.

Units of work that no running connector needs. What is changed about who is who goes through
`control.Control`, what is looked up about deliveries through `delivery.Delivery`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, delete, select

from accord.relay.connector.control.tables import enrolments
from accord.relay.connector.delivery.entries import ranges
from accord.relay.connector.delivery.graveyard import Burial
from accord.relay.connector.delivery.posting import DELIVERIES
from accord.relay.connector.delivery.tables import dead_letters, receipts
from accord.storage import Record, journal


@dataclass(frozen=True, slots=True)
class Minted:
    """An enrolment token, without the token; times in milliseconds since the epoch.

    Attributes:
        used_at: When a gateway spent it; None while it is out.
    """

    tenant: str
    instance: str
    name: str
    created_at: int
    expires_at: int
    used_at: int | None


def enrolment_tokens(connection: Connection, tenant: str | None = None) -> list[Minted]:
    """Every token that is remembered, the newest first, or those of one tenant."""
    columns = [enrolments.c[name] for name in Minted.__slots__]
    which = () if tenant is None else (enrolments.c.tenant == tenant,)
    query = select(*columns).where(*which).order_by(enrolments.c.created_at.desc())
    return [Minted(*row) for row in connection.execute(query)]


def latest_events(connection: Connection, limit: int) -> list[str]:
    """The ids of the events that were taken last, the newest first."""
    query = select(receipts.c.event).order_by(receipts.c.received_at.desc()).limit(limit)
    return list(connection.execute(query).scalars())


def letters_of(connection: Connection, instance: str) -> list[int]:
    """The numbers of an instance's dead letters, in their order."""
    query = select(dead_letters.c.seq).where(dead_letters.c.instance == instance)
    return list(connection.execute(query.order_by(dead_letters.c.seq)).scalars())


def drop_letters(
    connection: Connection, instance: str, seqs: Sequence[int], burial: Burial
) -> list[int]:
    """Forget dead letters for good, and say which there were; the journal tells of it."""
    chosen = (dead_letters.c.instance == instance) & dead_letters.c.seq.in_(seqs)
    gone = sorted(
        connection.execute(delete(dead_letters).where(chosen).returning(dead_letters.c.seq))
        .scalars()
        .all()
    )
    if gone:
        told = {"dropped": [[instance, first, last] for first, last in ranges(gone)]}
        body = orjson.dumps(told).decode()
        record = Record(DELIVERIES, burial.id, burial.now, burial.source, body)
        journal.append(connection, [record])
        burial.note(connection, "letters.dropped", instance, len(gone))
    return gone
