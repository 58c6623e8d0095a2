"""The one unit of work of delivery: a batch of everything that waits, in one transaction.

Owns the order of locks, which is the same in every process: leases, queues, buffer, chats, vault,
journal. A unit may be run again, so it changes nothing but the database. Never decides who
receives what: that was done before.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, delete, exists, select, update
from sqlalchemy.dialects import postgresql, sqlite

from accord.relay.connector.control.directory import Vault
from accord.relay.connector.delivery.entries import (
    INBOUND,
    Admission,
    Admitted,
    Batch,
    Claim,
    Parcel,
    Posted,
    Queue,
    Row,
    RowState,
    ranges,
)
from accord.relay.connector.delivery.tables import buffer, chats, leases, queues, receipts
from accord.relay.connector.platform import Fence
from accord.relay.errors import Code, RelayError
from accord.storage import Record, Rows, journal

DELIVERIES = "relay.deliveries"

# Far below the number of parameters that either engine takes in one statement.
_LOOKUP = 500

_OWNERS = (
    select(leases.c.name, leases.c.holder, leases.c.epoch)
    .where(leases.c.name.in_(bindparam("names", expanding=True)))
    .order_by(leases.c.name)
    .with_for_update(read=True)
)
_TAKEN = select(receipts.c.event_id, receipts.c.event).where(
    receipts.c.platform == bindparam("platform"),
    receipts.c.bot_id == bindparam("bot_id"),
    receipts.c.event_id.in_(bindparam("ids", expanding=True)),
)
_RECEIVE = Rows(receipts)
_QUEUES = (
    select(
        queues.c.instance,
        queues.c.tenant,
        queues.c.series,
        queues.c.head,
        queues.c.epoch,
        queues.c.flipped,
    )
    .where(queues.c.instance.in_(bindparam("instances", expanding=True)))
    .order_by(queues.c.instance)
    .with_for_update()
)
_NEW_QUEUE = {
    "postgresql": postgresql.insert(queues).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(queues).on_conflict_do_nothing(),
}
_ADVANCE = update(queues).where(queues.c.instance == bindparam("of")).values(head=bindparam("to"))
_OPEN = update(queues).where(queues.c.instance == bindparam("of")).values(epoch=queues.c.epoch + 1)
_FLIP = (
    update(queues)
    .where(queues.c.instance == bindparam("of"))
    .values(flipped=1, flipped_at=bindparam("at"))
)
_SETTLE = (
    update(queues)
    .where(
        queues.c.instance == bindparam("of"),
        ~exists().where(buffer.c.instance == bindparam("of"), buffer.c.kind == INBOUND),
    )
    .values(flipped=0, flipped_at=None)
)
_ADD = Rows(buffer)
_RANGE = (
    buffer.c.instance == bindparam("of"),
    buffer.c.seq.between(bindparam("first"), bindparam("last")),
)
_SENT = (
    update(buffer)
    .where(*_RANGE)
    .values(
        state=RowState.SENT.value,
        deliveries=buffer.c.deliveries + 1,
        epoch=bindparam("by"),
    )
)
_ACKED = delete(buffer).where(*_RANGE)


def _seen_chat(dialect: Any) -> Any:
    row = dialect.insert(chats)
    keep = {
        name: row.excluded[name]
        for name in ("bot_id", "tenant", "scope_id", "user_id", "delivered_at")
    }
    return row.on_conflict_do_update(index_elements=list(chats.primary_key), set_=keep)


_SEEN_CHAT = {"postgresql": _seen_chat(postgresql), "sqlite": _seen_chat(sqlite)}


def post(connection: Connection, batch: Batch, vault: Vault, source: str) -> Posted:
    """Write a batch."""
    posted = Posted()
    taking = _taking(connection, batch, posted)
    posted.queues = _queues(connection, batch, taking)
    changes = _changes(connection, batch, posted)
    _open(connection, batch, posted)
    changes |= _store(connection, batch, taking, posted)
    posted.opened = [posted.queues[instance] for instance, _ in batch.opens]
    if capabilities := [each for admission in taking for each in admission.capabilities]:
        vault.bind(connection, capabilities)
    records = [record for admission in taking for record in admission.records]
    if changes:
        body = orjson.dumps(changes).decode()
        records.append(Record(DELIVERIES, batch.id, batch.now, source, body))
    if records:
        journal.append(connection, records)
    return posted


def _taking(connection: Connection, batch: Batch, posted: Posted) -> list[Admission]:
    """Refuse what came over a socket that is no longer ours, and what was taken before."""
    owners = _owners(connection, {a.fence.lease for a in batch.admissions if a.fence})
    taken: dict[tuple[str, str, str], str] = {}
    asked: dict[tuple[str, str], list[str]] = defaultdict(list)
    for admission in batch.admissions:
        asked[admission.platform, admission.bot_id].append(admission.event_id)
    for (platform, bot_id), ids in asked.items():
        for some in _slices(ids):
            values = {"platform": platform, "bot_id": bot_id, "ids": some}
            for event_id, event in connection.execute(_TAKEN, values):
                taken[platform, bot_id, event_id] = event
    taking = []
    for admission in batch.admissions:
        key = (admission.platform, admission.bot_id, admission.event_id)
        if admission.fence and owners.get(admission.fence.lease) != admission.fence:
            posted.admitted.append(lost(admission.fence))
        elif key in taken:
            posted.admitted.append(Admitted(taken[key], is_new=False))
        else:
            taken[key] = admission.event
            posted.admitted.append(Admitted(admission.event, is_new=True))
            taking.append(admission)
    return taking


def lost(fence: Fence) -> RelayError:
    """The refusal of a former owner."""
    return RelayError(
        Code.CONFLICT,
        "this connector no longer owns the platform's socket",
        where=fence.lease,
        mend="let the new owner receive it",
    )


def _owners(connection: Connection, names: set[str]) -> dict[str, Fence]:
    if not names:
        return {}
    rows = connection.execute(_OWNERS, {"names": sorted(names)})
    return {name: Fence(name, holder, epoch) for name, holder, epoch in rows}


def read_queues(connection: Connection, instances: Sequence[str]) -> dict[str, Queue]:
    """How queues stand; whoever may write locks them, in the order of their names."""
    return {
        instance: Queue(tenant, series, head, epoch, bool(flipped))
        for some in _slices(sorted(instances))
        for instance, tenant, series, head, epoch, flipped in connection.execute(
            _QUEUES, {"instances": some}
        )
    }


def new_queue(connection: Connection, instance: str, tenant: str, series: str) -> None:
    """Begin a queue, unless there is one."""
    fresh = {"instance": instance, "tenant": tenant, "series": series, "head": 0, "epoch": 0}
    connection.execute(_NEW_QUEUE[connection.dialect.name], fresh | {"flipped": 0})


def _queues(connection: Connection, batch: Batch, taking: list[Admission]) -> dict[str, Queue]:
    owed = dict(batch.opens)
    owed |= {parcel.instance: parcel.tenant for a in taking for parcel in a.parcels}
    claims = (*batch.sent, *batch.acked, *batch.flips, *batch.settles)
    wanted = owed.keys() | {instance for instance, _ in claims}
    if not wanted:
        return {}
    found = read_queues(connection, list(wanted))
    if missing := sorted(owed.keys() - found.keys()):
        for instance in missing:
            new_queue(connection, instance, owed[instance], batch.series)
        found |= read_queues(connection, missing)
    return found


def _changes(connection: Connection, batch: Batch, posted: Posted) -> dict[str, Any]:
    """What sockets told: only the newest one of each instance is believed."""

    def current(claim: Claim) -> bool:
        queue = posted.queues.get(claim[0])
        return queue is not None and queue.epoch == claim[1]

    changes: dict[str, Any] = {}
    gone = {claim: seqs for claim, seqs in batch.acked.items() if current(claim)}
    sent = [
        {"of": claim[0], "first": first, "last": last, "by": claim[1]}
        for claim, seqs in sorted(batch.sent.items())
        if current(claim)
        for first, last in ranges(seqs - gone.get(claim, set()))
    ]
    if sent:
        connection.execute(_SENT, sent)
    acked = [
        {"of": claim[0], "first": first, "last": last}
        for claim, seqs in sorted(gone.items())
        for first, last in ranges(seqs)
    ]
    if acked:
        connection.execute(_ACKED, acked)
        changes[RowState.ACKED.value] = [list(each.values()) for each in acked]
    for claim in batch.flips:
        posted.flipped.append(current(claim))
        if posted.flipped[-1]:
            connection.execute(_FLIP, {"of": claim[0], "at": batch.now})
    for claim in batch.settles:
        posted.settled.append(
            current(claim) and connection.execute(_SETTLE, {"of": claim[0]}).rowcount > 0
        )
    return changes


def _open(connection: Connection, batch: Batch, posted: Posted) -> None:
    """Let the newest upgrade win: after what the older ones have told so far."""
    for instance, _ in batch.opens:
        connection.execute(_OPEN, {"of": instance})
        posted.queues[instance] = replace(
            posted.queues[instance], epoch=posted.queues[instance].epoch + 1
        )


def _store(
    connection: Connection, batch: Batch, taking: list[Admission], posted: Posted
) -> dict[str, Any]:
    """Give every parcel its number and keep it."""
    if not taking:
        return {}
    heads = {instance: queue.head for instance, queue in posted.queues.items()}
    rows: dict[str, list[tuple[str, Row]]] = {admission.event: [] for admission in taking}
    added, pending, seen = [], [], {}
    for admission in taking:
        for parcel in admission.parcels:
            seq = heads[parcel.instance] = heads[parcel.instance] + 1
            row = Row(seq, parcel.kind, parcel.body, 0, batch.now, admission.traceparent)
            rows[admission.event].append((parcel.instance, row))
            added.append(_buffer_row(admission, parcel, seq, batch.now))
            pending.append((parcel.instance, seq, admission.event))
        for chat in admission.chats:
            key = (chat.instance, chat.platform, chat.chat_id, chat.session_key)
            seen[key] = {name: getattr(chat, name) for name in chat.__slots__}
    _RECEIVE.insert(
        connection,
        [(a.platform, a.bot_id, a.event_id, a.event, batch.now) for a in taking],
    )
    if added:
        _ADD.insert(connection, added)
        moved = sorted({parcel.instance for a in taking for parcel in a.parcels})
        connection.execute(_ADVANCE, [{"of": each, "to": heads[each]} for each in moved])
    if seen:
        values = [seen[key] | {"delivered_at": batch.now} for key in sorted(seen)]
        connection.execute(_SEEN_CHAT[connection.dialect.name], values)
    for index, answer in enumerate(posted.admitted):
        if isinstance(answer, Admitted) and answer.is_new:
            posted.admitted[index] = Admitted(
                answer.event, is_new=True, rows=tuple(rows[answer.event])
            )
    for instance, queue in posted.queues.items():
        if heads[instance] != queue.head:
            posted.queues[instance] = replace(queue, head=heads[instance])
    return {RowState.PENDING.value: pending} if pending else {}


def _buffer_row(admission: Admission, parcel: Parcel, seq: int, now: int) -> tuple[Any, ...]:
    return (
        parcel.instance,
        seq,
        parcel.tenant,
        admission.platform,
        parcel.scope_id,
        parcel.session_key,
        admission.event,
        parcel.kind,
        parcel.body,
        RowState.PENDING.value,
        0,
        0,
        now,
        admission.traceparent,
    )


def _slices(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[start : start + _LOOKUP] for start in range(0, len(items), _LOOKUP)]
