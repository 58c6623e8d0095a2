"""What became of an event, for people: the gate's stored decision and where its rows are now."""

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, bindparam, select, tuple_

from accord.relay.connector.delivery.ingest import DECISIONS, INBOUND_STREAM
from accord.relay.connector.delivery.tables import buffer, dead_letters, receipts
from accord.relay.connector.schema import METADATA
from accord.relay.gate import Recorded, from_record
from accord.storage import verify

_JOURNAL = METADATA.tables["journal"]
_BOT = (receipts.c.platform, receipts.c.bot_id)
_NEXT_BOT = (
    select(*_BOT)
    .where(tuple_(*_BOT) > tuple_(bindparam("platform"), bindparam("bot_id")))
    .order_by(*_BOT)
    .limit(1)
)
_RECEIPT = select(receipts.c.event, receipts.c.received_at).where(
    receipts.c.platform == bindparam("platform"),
    receipts.c.bot_id == bindparam("bot_id"),
    receipts.c.event_id == bindparam("event_id"),
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the row of one instance is.

    Attributes:
        state: `pending`, `sent`, `dead`, or `acked` when nothing is left of it.
        reason: Why it is dead.
    """

    instance: str
    state: str
    deliveries: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """An event and everything that was decided about it.

    Attributes:
        trace_id: The trace under which it came; None for what an older version took.
    """

    event: str
    received_at: int
    recorded: Recorded
    standings: tuple[Standing, ...]
    trace_id: str | None = None


def why(connection: Connection, event: str) -> Explained | None:
    """What was decided about an event, named by our id or by the platform's; None when unknown.

    Raises:
        StoreError: The record was damaged.
    """
    name, row = event, _told(connection, DECISIONS, event)
    if row is None:
        taken = _taken(connection, event)
        if taken is None or (row := _told(connection, DECISIONS, taken)) is None:
            return None
        name = taken
    recorded = from_record(orjson.loads(row["body"]))
    came = _told(connection, INBOUND_STREAM, name)
    found = _rows(connection, name)
    standings = tuple(
        found.get(instance, Standing(instance, "acked"))
        for instance in recorded.decision.deliveries
    )
    trace_id = None if came is None else orjson.loads(came["body"]).get("trace_id")
    return Explained(name, row["recorded_at"], recorded, standings, trace_id)


def _taken(connection: Connection, event_id: str) -> str | None:
    """Our id of the event that one of the bots saw last under this id of the platform's.

    Receipts are found by platform, bot and id; of the first two there are few.
    """
    found: list[tuple[int, str]] = []
    bot = {"platform": "", "bot_id": ""}
    while (place := connection.execute(_NEXT_BOT, bot).first()) is not None:
        bot = {"platform": place.platform, "bot_id": place.bot_id}
        row = connection.execute(_RECEIPT, {**bot, "event_id": event_id}).first()
        if row is not None:
            found.append((row.received_at, row.event))
    return max(found)[1] if found else None


def _told(connection: Connection, stream: str, name: str) -> RowMapping | None:
    """The record of an event in a stream, undamaged."""
    this = select(_JOURNAL).where(_JOURNAL.c.stream == stream, _JOURNAL.c.id == name)
    row = connection.execute(this).mappings().first()
    if row is not None:
        verify(_JOURNAL, row)
    return row


def _rows(connection: Connection, event: str) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    dead: Any = dead_letters.c
    for row in connection.execute(
        select(dead.instance, dead.deliveries, dead.reason).where(dead.event == event)
    ):
        found[row.instance] = Standing(row.instance, "dead", row.deliveries, row.reason)
    live: Any = buffer.c
    for row in connection.execute(
        select(live.instance, live.state, live.deliveries).where(live.event == event)
    ):
        found[row.instance] = Standing(row.instance, row.state, row.deliveries)
    return found
