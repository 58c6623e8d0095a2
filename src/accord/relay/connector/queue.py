"""The queues of instances: rows of the buffer, and the one writer that commits them in batches.

The order of locks is the same in every process: leases, queues, buffer, receipts, chats, vault,
counts, journal; see `SharedStore`. A unit of work may be run again, so it changes nothing but the
database. `QueueWriter` writes one batch at a time; what sockets reported goes into the next batch
when the store fails.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog
from sqlalchemy import Connection, bindparam, delete, exists, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from accord.relay.connector import strangers
from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.platform import Fence
from accord.relay.connector.store import (
    ParkedRow,
    ParkedSession,
    ParkedState,
    QueueLock,
    SharedWork,
    add_letters,
    add_parked,
    count_parked,
    find_parked_sessions,
    parked_letter,
    write_journal,
)
from accord.relay.connector.strangers import Stranger
from accord.relay.connector.tables import buffer, chat_authors, chats, leases, queues, receipts
from accord.relay.connector.unlinked import UnlinkedCount, count
from accord.relay.connector.vault import Capability, Vault
from accord.relay.errors import Code, RelayError
from accord.relay.rules.decision_records import write_event
from accord.relay.rules.gate import GateEvent
from accord.storage import BulkInsert, JournalRecord, StoreError, is_one_of, postgres_array

if TYPE_CHECKING:
    from accord.relay.connector.connections import ConnectionHub

_AGAIN_SECONDS = 1.0
# How often a batch is written again because another process took some of its events.
_COLLISIONS = 4
_log = structlog.stdlib.get_logger(__name__)


class RowState(Enum):
    """The state of a row. Only the first two occur in the buffer; the journal has them all."""

    PENDING = "pending"
    SENT = "sent"
    ACKED = "acked"
    DEAD = "dead"


INBOUND: Final = "inbound"
PASSTHROUGH: Final = "passthrough"


@dataclass(frozen=True, slots=True)
class BufferRow:
    """One row of an instance's buffer; `created_at` in milliseconds since the epoch."""

    seq: int
    kind: str
    body: str
    deliveries: int = 0
    created_at: int = 0
    traceparent: str | None = None

    def line(self, series: str | None) -> str:
        """The frame as a line; without a series it carries no `bufferId`."""
        ending = "}\n" if series is None else f',"bufferId":"{series}-{self.seq}"}}\n'
        if self.traceparent is not None:
            ending = f',"traceparent":"{self.traceparent}"{ending}'
        if self.kind == INBOUND:
            return f'{{"type":"inbound","event":{self.body}{ending}'
        return f'{{"type":"passthrough_forward","forward":{self.body}{ending}'


def read_buffer_id(text: str, series: str) -> int | None:
    """The row that an acknowledgement names; None when it is not of this series."""
    prefix, _, number = text.rpartition("-")
    if prefix != series or not number.isascii() or not number.isdigit() or len(number) > 18:
        return None
    return int(number)


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row to be added to an instance's queue, or to be parked if the gate lacks a fact."""

    instance: str
    tenant: str
    scope_id: str
    session_key: str
    kind: str
    body: str
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class SeenChat:
    """A chat from which something is delivered to an instance.

    `user_id` is set for direct chats, `parent_id` is the channel of a thread; else ''.
    """

    instance: str
    platform: str
    chat_id: str
    session_key: str
    bot_id: str
    tenant: str
    scope_id: str
    user_id: str
    author: str
    parent_id: str
    # Whether the author is not linked and the instance is open to everybody: 1 or 0.
    stranger: int = 0


@dataclass(frozen=True, slots=True)
class EventAdmission:
    """An event with everything that is stored for it, in one transaction.

    `traceparent` continues the event's trace at its delivery, also after a restart. `gate` is what
    the gate decides by; without it nothing can be parked.
    """

    platform: str
    bot_id: str
    event_id: str
    event: str
    received_at: int
    fence: Fence | None
    new_rows: tuple[NewRow, ...] = ()
    chats: tuple[SeenChat, ...] = ()
    capabilities: tuple[Capability, ...] = ()
    records: tuple[JournalRecord, ...] = ()
    traceparent: str | None = None
    gate: GateEvent | None = None
    # Set for a message that is only counted.
    counted: UnlinkedCount | None = None
    # Set for a message of somebody who is not linked to an instance that is open to everybody, with
    # what is stored instead when there are too many.
    stranger: Stranger | None = None
    limited: "EventAdmission | None" = None


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """The result of an admission: rows by instance; for a duplicate, the first event's id.

    `parked` are the sessions in which the event waits for a fact or behind another that does;
    `full` are the instances for which it could not wait and became a dead letter; `is_limited` says
    that somebody who is not linked wrote too much, and `EventAdmission.limited` was stored.
    """

    event: str
    is_new: bool
    rows: tuple[tuple[str, BufferRow], ...] = ()
    parked: tuple[ParkedSession, ...] = ()
    full: tuple[str, ...] = ()
    is_limited: bool = False


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of an instance's queue."""

    tenant: str
    series: str
    head: int
    epoch: int
    flipped: bool


SocketClaim = tuple[str, int]
"""An instance and the epoch of its socket; only the newest epoch is accepted."""


@dataclass(slots=True)
class Batch:
    """What is written together; `opens` are instances and tenants whose gateway has dialled.

    It is not modified any more once it is being written.
    """

    admissions: list[EventAdmission] = field(default_factory=list)
    sent: dict[SocketClaim, set[int]] = field(default_factory=dict)
    acked: dict[SocketClaim, set[int]] = field(default_factory=dict)
    opens: list[tuple[str, str]] = field(default_factory=list)
    flips: list[SocketClaim] = field(default_factory=list)
    settles: list[SocketClaim] = field(default_factory=list)
    id: str = ""
    series: str = ""
    now: int = 0
    # How many events may be parked for one instance, and when the platform is asked again.
    most_parked: int = 1000
    park_pause_ms: int = 5000
    # How many messages a minute somebody who is not linked may send.
    open_per_minute: int = 6

    @property
    def locks(self) -> dict[str, QueueLock]:
        """How it locks the queues that it writes to."""
        found = {instance: QueueLock.REPORT for instance, _ in (*self.sent, *self.acked)}
        for admission in self.admissions:
            found |= {row.instance: QueueLock.ADD for row in admission.new_rows}
            found |= {chat.instance: QueueLock.ADD for chat in admission.chats}
            if admission.stranger is not None:
                found[admission.stranger.instance] = QueueLock.ADD
        for instance, _ in (*self.opens, *self.flips, *self.settles):
            found[instance] = QueueLock.WHOLE
        return found

    @property
    def fences(self) -> set[str]:
        """The leases under which its events came."""
        return {each.fence.lease for each in self.admissions if each.fence is not None}

    def __bool__(self) -> bool:
        reports = self.sent or self.acked
        return bool(self.admissions or reports or self.opens or self.flips or self.settles)


@dataclass(slots=True)
class BatchResult:
    """The results of a batch; each list is aligned with that of the batch."""

    admitted: list[AdmissionResult | RelayError] = field(default_factory=list)
    queues: dict[str, QueueState] = field(default_factory=dict)
    opened: list[QueueState] = field(default_factory=list)
    flipped: list[bool] = field(default_factory=list)
    settled: list[bool] = field(default_factory=list)


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges of consecutive ones, both ends included."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


DELIVERIES = "relay.deliveries"

# Far below the number of parameters that either engine takes in one statement.
_LOOKUP = 500

_OWNERS = select(leases.c.name, leases.c.holder, leases.c.epoch).where(
    is_one_of(leases.c.name, "names")
)
_TAKEN = select(receipts.c.event_id, receipts.c.event).where(
    receipts.c.platform == bindparam("platform"),
    receipts.c.bot_id == bindparam("bot_id"),
    is_one_of(receipts.c.event_id, "ids"),
)
_RECEIVE = BulkInsert(receipts)
_QUEUES = select(
    queues.c.instance,
    queues.c.tenant,
    queues.c.series,
    queues.c.head,
    queues.c.epoch,
    queues.c.flipped,
).where(is_one_of(queues.c.instance, "instances"))
_NEW_QUEUE = {
    "postgresql": postgresql.insert(queues).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(queues).on_conflict_do_nothing(),
}
# One statement for all queues, which are locked already.
_ADVANCE = {
    "postgresql": text(
        "UPDATE queues SET head = moved.head"
        " FROM unnest(CAST(:names AS text[]), CAST(:heads AS bigint[])) AS moved (name, head)"
        " WHERE queues.instance = moved.name"
    ),
    "sqlite": text(
        "UPDATE queues SET head = moved.head FROM (SELECT json_extract(value, '$[0]') AS name,"
        " json_extract(value, '$[1]') AS head FROM json_each(:moved)) AS moved"
        " WHERE queues.instance = moved.name"
    ),
}
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
_ADD = BulkInsert(buffer)
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
# SQLite deletes them all without the interpreter's lock.
_ACKED_TOGETHER = text(
    "DELETE FROM buffer WHERE (instance, seq) IN (SELECT CAST(json_extract(value, '$[0]') AS TEXT),"
    " CAST(json_extract(value, '$[1]') AS INTEGER) FROM json_each(:rows))"
)


def _seen_chat(dialect: Any) -> Any:
    row = dialect.insert(chats)
    keep = {
        name: row.excluded[name]
        for name in ("bot_id", "tenant", "scope_id", "user_id", "delivered_at")
    }
    return row.on_conflict_do_update(index_elements=list(chats.primary_key), set_=keep)


def _seen_author(dialect: Any) -> Any:
    row = dialect.insert(chat_authors)
    keep = {name: row.excluded[name] for name in ("parent_id", "delivered_at", "stranger")}
    return row.on_conflict_do_update(index_elements=list(chat_authors.primary_key), set_=keep)


_SEEN_CHAT = {"postgresql": _seen_chat(postgresql), "sqlite": _seen_chat(sqlite)}
_SEEN_AUTHOR = {"postgresql": _seen_author(postgresql), "sqlite": _seen_author(sqlite)}
_CHAT_COLUMNS = tuple(each.name for each in chats.c if each.name != "delivered_at")
_AUTHOR_COLUMNS = tuple(each.name for each in chat_authors.c if each.name != "delivered_at")


def write_batch(connection: Connection, batch: Batch, vault: Vault, source: str) -> BatchResult:
    """Write a batch."""
    result = BatchResult()
    new_events = _new_events(connection, batch, result)
    result.queues = _queues(connection, batch, new_events)
    changes = _store_reports(connection, batch, result)
    _raise_epochs(connection, batch, result)
    changes |= _store_events(connection, batch, new_events, result)
    result.opened = [result.queues[instance] for instance, _ in batch.opens]
    if capabilities := _capabilities(new_events, result):
        vault.bind(connection, capabilities)
    if counted := [each.counted for each in new_events if each.counted]:
        count(connection, batch.now, counted)
    records = [record for admission in new_events for record in admission.records]
    if changes:
        body = orjson.dumps(changes).decode()
        records.append(JournalRecord(DELIVERIES, batch.id, batch.now, source, body))
    if records:
        write_journal(connection, records, are_new=True)
    return result


def _capabilities(new_events: list[EventAdmission], result: BatchResult) -> list[Capability]:
    """The capabilities of new events; those of parked ones cannot be used yet."""
    new = [a for a in result.admitted if isinstance(a, AdmissionResult) and a.is_new]
    stored = {each.event: each for each in new}
    kept = []
    for admission in new_events:
        for each in admission.capabilities:
            told = stored[admission.event]
            if any(each.instance == session.instance for session in told.parked):
                kept.append(replace(each, parked=admission.event))
            elif each.instance not in told.full:
                kept.append(each)
    return kept


def _new_events(connection: Connection, batch: Batch, result: BatchResult) -> list[EventAdmission]:
    """The new events of a batch; those under a lost lease and duplicates are answered."""
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
    new_events = []
    for admission in batch.admissions:
        key = (admission.platform, admission.bot_id, admission.event_id)
        if admission.fence and owners.get(admission.fence.lease) != admission.fence:
            result.admitted.append(lease_lost(admission.fence))
        elif key in taken:
            result.admitted.append(AdmissionResult(taken[key], is_new=False))
        else:
            taken[key] = admission.event
            result.admitted.append(AdmissionResult(admission.event, is_new=True))
            new_events.append(admission)
    return _limit_strangers(connection, batch, new_events, result)


def _limit_strangers(
    connection: Connection, batch: Batch, new_events: list[EventAdmission], result: BatchResult
) -> list[EventAdmission]:
    """The new events, with those that are beyond the rate of their author as they are refused."""
    wanted = [each.stranger for each in new_events if each.stranger is not None]
    if not wanted:
        return new_events
    turns = iter(strangers.take_turns(connection, wanted, batch.open_per_minute, batch.now))
    limited = {
        each.event: each.limited
        for each in new_events
        if each.stranger is not None and not next(turns) and each.limited is not None
    }
    for index, answer in enumerate(result.admitted):
        if isinstance(answer, AdmissionResult) and answer.is_new and answer.event in limited:
            result.admitted[index] = replace(answer, is_limited=True)
    return [limited.get(each.event, each) for each in new_events]


def lease_lost(fence: Fence) -> RelayError:
    """The error for a former owner of a lease."""
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


def read_queues(connection: Connection, instances: Sequence[str]) -> dict[str, QueueState]:
    """The states of queues; the unit of work has locked them."""
    return {
        instance: QueueState(tenant, series, head, epoch, bool(flipped))
        for some in _slices(sorted(instances))
        for instance, tenant, series, head, epoch, flipped in connection.execute(
            _QUEUES, {"instances": some}
        )
    }


def new_queue(connection: Connection, instance: str, tenant: str, series: str) -> None:
    """Make a queue, unless there is one."""
    fresh = {"instance": instance, "tenant": tenant, "series": series, "head": 0, "epoch": 0}
    connection.execute(_NEW_QUEUE[connection.dialect.name], fresh | {"flipped": 0})


def _queues(
    connection: Connection, batch: Batch, new_events: list[EventAdmission]
) -> dict[str, QueueState]:
    owed = dict(batch.opens)
    owed |= {new_row.instance: new_row.tenant for a in new_events for new_row in a.new_rows}
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


def _store_reports(connection: Connection, batch: Batch, result: BatchResult) -> dict[str, Any]:
    """Write what sockets reported; only the newest socket of each instance counts."""

    def current(claim: SocketClaim) -> bool:
        queue = result.queues.get(claim[0])
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
        _delete_acked(connection, acked, gone)
        changes[RowState.ACKED.value] = [list(each.values()) for each in acked]
    for claim in batch.flips:
        result.flipped.append(current(claim))
        if result.flipped[-1]:
            connection.execute(_FLIP, {"of": claim[0], "at": batch.now})
    for claim in batch.settles:
        result.settled.append(
            current(claim) and connection.execute(_SETTLE, {"of": claim[0]}).rowcount > 0
        )
    return changes


def _delete_acked(
    connection: Connection, acked: list[dict[str, Any]], gone: dict[SocketClaim, set[int]]
) -> None:
    if connection.dialect.name == "sqlite":
        rows = [(instance, seq) for (instance, _), seqs in gone.items() for seq in seqs]
        connection.execute(_ACKED_TOGETHER, {"rows": orjson.dumps(rows).decode()})
    else:
        connection.execute(_ACKED, acked)


def _advance(connection: Connection, heads: dict[str, int]) -> None:
    """Store the numbers of the newest rows of queues."""
    if connection.dialect.name == "sqlite":
        values: dict[str, Any] = {"moved": orjson.dumps(list(heads.items())).decode()}
    else:
        values = {"names": postgres_array(heads), "heads": postgres_array(heads.values())}
    connection.execute(_ADVANCE[connection.dialect.name], values)


def _raise_epochs(connection: Connection, batch: Batch, result: BatchResult) -> None:
    """Raise the epochs of opened queues, after the reports of their older sockets."""
    for instance, _ in batch.opens:
        connection.execute(_OPEN, {"of": instance})
        result.queues[instance] = replace(
            result.queues[instance], epoch=result.queues[instance].epoch + 1
        )


def _store_events(
    connection: Connection, batch: Batch, new_events: list[EventAdmission], result: BatchResult
) -> dict[str, Any]:
    """Number the new rows and store them."""
    if not new_events:
        return {}
    heads = {instance: queue.head for instance, queue in result.queues.items()}
    rows: dict[str, list[tuple[str, BufferRow]]] = {admission.event: [] for admission in new_events}
    added, pending = [], []
    seen: dict[tuple[str, ...], dict[str, Any]] = {}
    authors: dict[tuple[str, ...], dict[str, Any]] = {}
    parking = _Parking(connection, batch, new_events)
    for admission in new_events:
        waits = parking.take(admission)
        for new_row in admission.new_rows:
            if new_row.instance in waits:
                continue
            seq = heads[new_row.instance] = heads[new_row.instance] + 1
            row = BufferRow(seq, new_row.kind, new_row.body, 0, batch.now, admission.traceparent)
            rows[admission.event].append((new_row.instance, row))
            added.append(_buffer_row(admission, new_row, seq, batch.now))
            pending.append((new_row.instance, seq, admission.event))
        for chat in admission.chats:
            if chat.instance in waits:
                continue  # it may be answered when it is delivered
            place = (chat.instance, chat.platform)
            row_of_chat = {name: getattr(chat, name) for name in _CHAT_COLUMNS}
            row_of_author = {name: getattr(chat, name) for name in _AUTHOR_COLUMNS}
            seen[*place, chat.chat_id, chat.session_key] = row_of_chat
            authors[*place, chat.scope_id, chat.chat_id, chat.author] = row_of_author
    # In order: another process may be storing some of the same events.
    received = [
        (a.platform, a.bot_id, a.event_id, a.event, batch.now, a.counted and a.counted.rule)
        for a in new_events
    ]
    _RECEIVE.insert(connection, sorted(received, key=lambda row: row[:3]))
    if added:
        _ADD.insert(connection, added)
    changes: dict[str, Any] = parking.store(connection, heads, batch.now)
    moved = sorted(each for each, queue in result.queues.items() if heads[each] != queue.head)
    if moved:
        _advance(connection, {each: heads[each] for each in moved})
    if seen:
        for statement, by_key in (
            (_SEEN_CHAT[connection.dialect.name], seen),
            (_SEEN_AUTHOR[connection.dialect.name], authors),
        ):
            values = [{**by_key[key], "delivered_at": batch.now} for key in sorted(by_key)]
            connection.execute(statement, values)
    for index, answer in enumerate(result.admitted):
        if isinstance(answer, AdmissionResult) and answer.is_new:
            result.admitted[index] = AdmissionResult(
                answer.event,
                is_new=True,
                rows=tuple(rows[answer.event]),
                parked=tuple(parking.parked.get(answer.event, ())),
                full=tuple(parking.full.get(answer.event, ())),
                is_limited=answer.is_limited,
            )
    for instance, queue in result.queues.items():
        if heads[instance] != queue.head:
            result.queues[instance] = replace(queue, head=heads[instance])
    if pending or RowState.PENDING.value in changes:
        changes[RowState.PENDING.value] = [*pending, *changes.get(RowState.PENDING.value, ())]
    return changes


PARKED_FULL: Final = "too many events waited for an answer of the platform"
"""The reason of a dead letter that could not be parked."""


class _Parking:
    """Which rows of a batch are parked: what the gate lacked a fact for, and what is behind it."""

    def __init__(
        self, connection: Connection, batch: Batch, new_events: list[EventAdmission]
    ) -> None:
        instances = {row.instance for each in new_events for row in each.new_rows}
        self._sessions = find_parked_sessions(connection, instances) if instances else {}
        unknown = {r.instance for each in new_events for r in each.new_rows if r.is_unknown}
        waiting = unknown | {session.instance for session in self._sessions}
        self._counts = count_parked(connection, waiting) if waiting else {}
        self._batch = batch
        self._rows: list[ParkedRow] = []
        self._letters: list[ParkedRow] = []
        self.parked: dict[str, list[ParkedSession]] = {}
        self.full: dict[str, list[str]] = {}

    def take(self, admission: EventAdmission) -> frozenset[str]:
        """The instances for which an event is not delivered now."""
        waits: set[str] = set()
        for new_row in admission.new_rows:
            session = ParkedSession(new_row.instance, new_row.session_key)
            state = self._sessions.get(session)
            if not (new_row.is_unknown or state) or admission.gate is None:
                continue
            waits.add(new_row.instance)
            due_at = self._batch.now + self._batch.park_pause_ms
            state = state or ParkedState(due_at, 0)
            row = _parked_row(admission, new_row, admission.gate, state, self._batch.now)
            count = self._counts.get(new_row.instance, 0)
            if count >= self._batch.most_parked:
                self._letters.append(row)
                self.full.setdefault(admission.event, []).append(new_row.instance)
                continue
            self._counts[new_row.instance] = count + 1
            self._sessions[session] = state
            self._rows.append(row)
            self.parked.setdefault(admission.event, []).append(session)
        return frozenset(waits)

    def store(self, connection: Connection, heads: dict[str, int], now: int) -> dict[str, Any]:
        """Store what was taken, numbering dead letters as rows of their queues; the journal."""
        add_parked(connection, self._rows)
        if not self._letters:
            return {}
        letters, dead, pending = [], [], []
        for row in self._letters:
            seq = heads[row.instance] = heads[row.instance] + 1
            letters.append(parked_letter(row, seq, PARKED_FULL, now))
            pending.append((row.instance, seq, row.event))
            dead.append([row.instance, seq, seq])
        add_letters(connection, letters)
        return {RowState.PENDING.value: pending, RowState.DEAD.value: dead, "reason": PARKED_FULL}


def _parked_row(
    admission: EventAdmission, new_row: NewRow, gate: GateEvent, state: ParkedState, now: int
) -> ParkedRow:
    # The record of a decision names the platform's own id.
    event = replace(gate, event_id=admission.event_id)
    return ParkedRow(
        new_row.instance,
        new_row.tenant,
        admission.platform,
        new_row.scope_id,
        new_row.session_key,
        admission.event,
        new_row.kind,
        new_row.body,
        orjson.dumps(write_event(event)).decode(),
        now,
        state.due_at,
        admission.traceparent,
        attempts=state.attempts,
    )


def seen_chat(
    gate: GateEvent, tenant: str, instance: str, session_key: str, *, stranger: bool
) -> SeenChat:
    """The chat of an event that is delivered to an instance."""
    return SeenChat(
        instance=instance,
        platform=gate.platform,
        chat_id=gate.chat_id,
        session_key=session_key,
        bot_id=gate.bot_id,
        tenant=tenant,
        scope_id=gate.scope_id or "",
        user_id=(gate.author or "") if gate.is_dm else "",
        author=gate.author or "",
        parent_id=gate.parent_chat_id or "",
        stranger=int(stranger),
    )


def store_chats(connection: Connection, seen: Sequence[SeenChat], now: int) -> None:
    """Store from which chats something is delivered."""
    for statement, names in (
        (_SEEN_CHAT[connection.dialect.name], _CHAT_COLUMNS),
        (_SEEN_AUTHOR[connection.dialect.name], _AUTHOR_COLUMNS),
    ):
        for chat in seen:
            values = {name: getattr(chat, name) for name in names}
            connection.execute(statement, {**values, "delivered_at": now})


def _buffer_row(admission: EventAdmission, new_row: NewRow, seq: int, now: int) -> tuple[Any, ...]:
    return (
        new_row.instance,
        seq,
        new_row.tenant,
        admission.platform,
        new_row.scope_id,
        new_row.session_key,
        admission.event,
        new_row.kind,
        new_row.body,
        RowState.PENDING.value,
        0,
        0,
        now,
        admission.traceparent,
    )


def _slices(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[start : start + _LOOKUP] for start in range(0, len(items), _LOOKUP)]


ResultFuture = asyncio.Future[Any]
# Of admissions, opens, flips and settles.
ResultFutures = tuple[
    list[ResultFuture], list[ResultFuture], list[ResultFuture], list[ResultFuture]
]


@dataclass(eq=False, repr=False)
class QueueWriter:
    """The one writer of queues and buffer in this process.

    After each commit, and before any caller is answered, the hub gets the rows that were added.
    """

    context: DeliveryContext
    hub: "ConnectionHub"
    _waiting: Batch = field(default_factory=Batch)
    _answers: ResultFutures = field(default_factory=lambda: ([], [], [], []))
    _lately: dict[SocketClaim, set[int]] = field(default_factory=dict)
    _alarm: asyncio.TimerHandle | None = None
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False

    def admit(self, admission: EventAdmission) -> "asyncio.Future[AdmissionResult]":
        """Store an event and what it becomes; events are numbered in the order of these calls.

        Raises:
            RelayError: When awaited: it came over a socket that is no longer ours.
            StoreError: When awaited: the store failed.
        """
        return self._ask(self._waiting.admissions, admission, 0)

    async def open(self, instance: str, tenant: str) -> QueueState:
        """Let a new socket take over the queue; reports of older sockets are ignored from then."""
        self._keep_sent()
        queue: QueueState = await self._ask(self._waiting.opens, (instance, tenant), 1)
        return queue

    async def flip(self, claim: SocketClaim) -> bool:
        """Buffer everything from now on; False when a newer socket took over."""
        done: bool = await self._ask(self._waiting.flips, claim, 2)
        return done

    async def settle(self, claim: SocketClaim) -> bool:
        """Go live again if the queue is empty, in one transaction; False when it is not."""
        done: bool = await self._ask(self._waiting.settles, claim, 3)
        return done

    def sent(self, claim: SocketClaim, seqs: list[int]) -> None:
        """Report rows as sent. It is stored late: most rows are acknowledged before."""
        self._lately.setdefault(claim, set()).update(seqs)
        self._soon(self.context.limits.note_seconds)

    def acked(self, claim: SocketClaim, seqs: list[int]) -> None:
        """Report rows as acknowledged."""
        self._waiting.acked.setdefault(claim, set()).update(seqs)
        if claim in self._lately:
            self._lately[claim].difference_update(seqs)
        self._soon(self.context.limits.ack_batch_seconds)

    async def run(self) -> None:
        """Write until closed and nothing is left."""
        try:
            while not self._closed or self._waiting:
                await self._work.wait()
                if not await self._write_next() and self._closed:
                    return  # what sockets reported is reported again on their next connection
        finally:
            self._closed = True
            _answer_all(self._answers, _stopping())

    def close(self) -> None:
        """Accept nothing more, and let `run` end after the last batch."""
        self._closed = True
        self._keep_sent()
        if self._alarm is not None:
            self._alarm.cancel()
        self._work.set()

    def _ask(self, items: list[Any], item: Any, kind: int) -> ResultFuture:
        if self._closed:
            raise _stopping()
        answer: ResultFuture = asyncio.get_running_loop().create_future()
        items.append(item)
        self._answers[kind].append(answer)
        self._work.set()
        return answer

    def _soon(self, seconds: float) -> None:
        """Write within a time, with whatever else waits by then."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            if self._alarm.when() <= loop.time() + seconds:
                return
            self._alarm.cancel()
        self._alarm = loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._keep_sent()
        self._work.set()

    def _keep_sent(self) -> None:
        for claim, seqs in self._lately.items():
            if seqs:
                self._waiting.sent.setdefault(claim, set()).update(seqs)
        self._lately.clear()

    async def _write_next(self) -> bool:
        batch, self._waiting = self._waiting, Batch()
        answers, self._answers = self._answers, ([], [], [], [])
        self._work.clear()
        limit = self.context.limits.batch
        if len(batch.admissions) > limit:
            self._waiting.admissions = batch.admissions[limit:]
            self._answers[0].extend(answers[0][limit:])
            del batch.admissions[limit:], answers[0][limit:]
            self._work.set()
        batch.id = self.context.ids.new()
        batch.series = secrets.token_hex(4)
        batch.now = self.context.now()
        batch.most_parked = self.context.limits.parked_rows
        batch.park_pause_ms = int(self.context.limits.park_pause_seconds * 1000)
        batch.open_per_minute = self.context.limits.open_per_minute
        try:
            result = await self._post(batch)
        except (StoreError, IntegrityError) as error:
            await self._fail(batch, answers, error)
            return False
        except Exception as error:  # noqa: BLE001 - the callers get it
            _log.error("a batch could not be written", exc_info=error)
            await self._fail(batch, answers, error)
            return False
        added = [a for a in result.admitted if isinstance(a, AdmissionResult) and a.is_new]
        self.hub.committed(added, result.queues)
        outcomes: tuple[list[Any], ...] = (
            result.admitted,
            result.opened,
            result.flipped,
            result.settled,
        )
        for futures, values in zip(answers, outcomes, strict=True):
            for future, value in zip(futures, values, strict=True):
                if future.done():
                    continue
                if isinstance(value, RelayError):
                    future.set_exception(value)
                else:
                    future.set_result(value)
        return True

    async def _post(self, batch: Batch) -> BatchResult:
        context = self.context

        def write(connection: Connection) -> BatchResult:
            return write_batch(connection, batch, context.directory.vault, context.name)

        unit = SharedWork(write, batch.locks, batch.fences)
        for _ in range(_COLLISIONS):
            # Another process may take one of these events at the same time; then its receipt is
            # visible the next time.
            with suppress(IntegrityError):
                return await context.store.write(unit)
        return await context.store.write(unit)

    async def _fail(self, batch: Batch, answers: ResultFutures, error: Exception) -> None:
        _answer_all(answers, error)
        # What a gateway acknowledged must not come back only because the disk was full.
        for name in ("sent", "acked"):
            waiting: dict[SocketClaim, set[int]] = getattr(self._waiting, name)
            for claim, seqs in getattr(batch, name).items():
                waiting.setdefault(claim, set()).update(seqs)
        if not self._closed and (self._waiting.sent or self._waiting.acked):
            self._soon(_AGAIN_SECONDS)


def _answer_all(answers: ResultFutures, error: Exception) -> None:
    for future in (future for futures in answers for future in futures):
        if not future.done():
            future.set_exception(error)


def _stopping() -> RelayError:
    return RelayError(Code.UNAVAILABLE, "the connector is stopping", mend="try again")
