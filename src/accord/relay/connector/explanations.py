"""What became of an event: the gate's stored decision, and where its rows are now."""

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, bindparam, select, tuple_

from accord.relay.connector.ingest import DECISIONS, INBOUND_STREAM
from accord.relay.connector.tables import METADATA, buffer, dead_letter_rows, receipts
from accord.relay.rules.decision_records import DecisionRecord, from_record
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
class DeliveryStatus:
    """The state of one instance's row: `pending`, `sent`, `dead` (with a reason) or `acked`."""

    instance: str
    state: str
    deliveries: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """An event and what was decided about it; no trace id where an older version took it."""

    event: str
    received_at: int
    recorded: DecisionRecord
    statuses: tuple[DeliveryStatus, ...]
    trace_id: str | None = None


def explain_event(connection: Connection, event: str) -> Explanation | None:
    """What was decided about an event, named by our id or by the platform's; None when unknown.

    Raises:
        StoreError: The record was damaged.
    """
    name, row = event, _record(connection, DECISIONS, event)
    if row is None:
        own_id = _own_id(connection, event)
        if own_id is None or (row := _record(connection, DECISIONS, own_id)) is None:
            return None
        name = own_id
    recorded = from_record(orjson.loads(row["body"]))
    inbound = _record(connection, INBOUND_STREAM, name)
    found = _rows(connection, name)
    statuses = tuple(
        found.get(instance, DeliveryStatus(instance, "acked"))
        for instance in recorded.decision.deliveries
    )
    trace_id = None if inbound is None else orjson.loads(inbound["body"]).get("trace_id")
    return Explanation(name, row["recorded_at"], recorded, statuses, trace_id)


def _own_id(connection: Connection, event_id: str) -> str | None:
    """Our id of the latest event with this id of the platform's.

    Receipts are indexed by platform, bot and id, so it goes through the few platforms and bots.
    """
    found: list[tuple[int, str]] = []
    bot = {"platform": "", "bot_id": ""}
    while (place := connection.execute(_NEXT_BOT, bot).first()) is not None:
        bot = {"platform": place.platform, "bot_id": place.bot_id}
        row = connection.execute(_RECEIPT, {**bot, "event_id": event_id}).first()
        if row is not None:
            found.append((row.received_at, row.event))
    return max(found)[1] if found else None


def _record(connection: Connection, stream: str, name: str) -> RowMapping | None:
    """The record of an event in a stream, with its checksum verified."""
    this = select(_JOURNAL).where(_JOURNAL.c.stream == stream, _JOURNAL.c.id == name)
    row = connection.execute(this).mappings().first()
    if row is not None:
        verify(_JOURNAL, row)
    return row


def _rows(connection: Connection, event: str) -> dict[str, DeliveryStatus]:
    found: dict[str, DeliveryStatus] = {}
    dead: Any = dead_letter_rows.c
    for row in connection.execute(
        select(dead.instance, dead.deliveries, dead.reason).where(dead.event == event)
    ):
        found[row.instance] = DeliveryStatus(row.instance, "dead", row.deliveries, row.reason)
    live: Any = buffer.c
    for row in connection.execute(
        select(live.instance, live.state, live.deliveries).where(live.event == event)
    ):
        found[row.instance] = DeliveryStatus(row.instance, row.state, row.deliveries)
    return found


def latest_events(connection: Connection, limit: int) -> list[str]:
    """The ids of the events that were taken last, the newest first."""
    query = select(receipts.c.event).order_by(receipts.c.received_at.desc()).limit(limit)
    return list(connection.execute(query).scalars())
