"""Retention: removes what has expired.

`Housekeeping` deletes expired codes, tokens and vault entries. `apply_retention`, one process at a
time, moves old rows to the dead letters and deletes old receipts, chats and requests. Neither does
while the clock cannot be trusted (`accord.relay.rules.retention`).
"""

import asyncio
import copy
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog
from sqlalchemy import Column, Connection, delete, exists, func, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from accord.relay.connector import dead_letters, leases, operators, registry, unlinked
from accord.relay.connector.dead_letters import DeadLetterCause
from accord.relay.connector.directory import DeliveryContext, Directory
from accord.relay.connector.ingest import INBOUND_STREAM
from accord.relay.connector.outbox_store import OUTBOUND_STREAM
from accord.relay.connector.parked import DECISIONS
from accord.relay.connector.queue import DELIVERIES
from accord.relay.connector.settings import DeliveryLimits
from accord.relay.connector.store import CONTROL_STREAM, ControlChange, SharedWork, write_note
from accord.relay.connector.tables import (
    buffer,
    chat_authors,
    chats,
    dead_letter_rows,
    enrolments,
    link_codes,
    link_pending,
    link_talks,
    messages,
    outbox,
    queues,
    receipts,
    requests,
    retention_passes,
    stranger_rates,
)
from accord.relay.rules.retention import ClockTerms, ClockVerdict, ClockWatch
from accord.storage import JournalEntry, StoreError, journal

_log: Final = structlog.stdlib.get_logger(__name__)

_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """Retention of the control half."""

    directory: Directory
    _watch: ClockWatch = field(default_factory=ClockWatch)

    async def run(self) -> None:
        """Read other processes' changes often, and delete expired entries each minute."""
        # An idle process learns of revocations elsewhere only this way, so it runs in every one.
        pause = self.directory.settings.freshness_seconds / 2
        while True:
            try:
                await self.tidy()
            except StoreError as error:
                _log.warning("expired entries could not be deleted", reason=error.what)
            for _ in range(max(1, int(_SECONDS / pause))):
                await asyncio.sleep(pause)
                await self.directory.look()

    async def tidy(self) -> None:
        """Delete expired vault entries, codes, confirmations, talks and enrolment tokens.

        While the clock is not trusted they stay; what has expired is not valid all the same.
        """
        directory = self.directory
        passed_at = await directory.changes.read(read_pass)
        terms = ClockTerms(_SECONDS, directory.settings.downtime_seconds)
        now, monotonic = directory.clock.now(), directory.clock.monotonic()
        if not self._watch.judge(passed_at, now, monotonic, terms).trusted:
            return
        await directory.vault.purge()
        await self.directory.changes.change(_drop_expired)


def _drop_expired(change: ControlChange) -> None:
    connection, now = change.connection, change.now
    for table in (link_codes, link_pending):
        connection.execute(delete(table).where(table.c.expires_at <= now))
    connection.execute(delete(link_talks).where(link_talks.c.until <= now))
    connection.execute(
        delete(enrolments).where(enrolments.c.expires_at <= now - registry.REMEMBERED_MS)
    )
    operators.drop_ended(change)


LEASE = "janitor"
OWN_STREAMS: Final = (CONTROL_STREAM,)
"""The streams of the journal that no exporter takes."""
EXPORTED_STREAMS: Final = (
    INBOUND_STREAM,
    DECISIONS,
    DELIVERIES,
    OUTBOUND_STREAM,
    unlinked.UNLINKED_STREAM,
)
"""The streams that the pipeline exports."""
# How many rows of each table are removed at a time.
_MOST = 5000


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """How many rows wait for gateways, and how long the oldest has waited."""

    rows: int = 0
    oldest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """Rows moved to the dead letters and deleted elsewhere, and instances to be woken."""

    dead: int = 0
    deleted: int = 0
    asleep: tuple[str, ...] = ()
    waiting: QueueBacklog = QueueBacklog()


_NAME = "retention"
_READ_PASS = select(retention_passes.c.passed_at).where(retention_passes.c.name == _NAME)


def _put(dialect: Any) -> Any:
    row = dialect.insert(retention_passes)
    later = {"passed_at": row.excluded.passed_at}
    return row.on_conflict_do_update(index_elements=[retention_passes.c.name], set_=later)


_PUT_PASS: Final = {"postgresql": _put(postgresql), "sqlite": _put(sqlite)}


def read_pass(connection: Connection) -> float | None:
    """When retention was last applied, in seconds since the epoch."""
    found = connection.execute(_READ_PASS).scalar()
    return None if found is None else found / 1000


def store_pass(connection: Connection, passed_at: float) -> float:
    """Store when retention was last applied, or that the clock is right; the time as stored."""
    millis = int(passed_at * 1000)
    values = {"name": _NAME, "passed_at": millis}
    connection.execute(_PUT_PASS[connection.dialect.name], values)
    return millis / 1000


def clock_terms(limits: DeliveryLimits) -> ClockTerms:
    """What is expected of the clock."""
    return ClockTerms(limits.retention_seconds, limits.downtime_seconds)


async def _trusts_clock(context: DeliveryContext) -> bool:
    """Whether to delete by the clock; stores the time of the pass, or warns once."""
    store, watch, clock = context.store, context.clock_watch, context.clock
    now, monotonic = clock.now(), clock.monotonic()
    passed_at = await store.read(read_pass)
    verdict = watch.judge(passed_at, now, monotonic, clock_terms(context.limits))
    if verdict.passed_at is not None:
        stored = await store.write(partial(store_pass, passed_at=verdict.passed_at))
        watch.stored(stored, monotonic)
    if watch.is_new(verdict):
        report_clock(verdict, "`accord relay retention confirm` if the clock is right")
    return verdict.trusted


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """What retention thinks of the clock; times in milliseconds since the epoch."""

    passed_at: int | None
    now: int
    trusted: bool
    rule: str
    reason: str


async def clock_status(context: DeliveryContext) -> ClockStatus:
    """When retention was last applied, and whether the next pass would delete anything."""
    passed_at = await context.store.read(read_pass)
    now, monotonic = context.clock.now(), context.clock.monotonic()
    # The passes go on with what they have seen, not with this look.
    watch = copy.copy(context.clock_watch)
    verdict = watch.judge(passed_at, now, monotonic, clock_terms(context.limits))
    millis = None if passed_at is None else int(passed_at * 1000)
    return ClockStatus(
        millis, int(now * 1000), verdict.trusted, verdict.rule.value, verdict.sentence
    )


async def confirm_clock(context: DeliveryContext, by: str | None = None) -> None:
    """Take the clock for right, so that retention goes on; the journal records by whom."""

    def work(connection: Connection) -> None:
        store_pass(connection, context.clock.now())
        note, now = context.ids.new(), context.now()
        write_note(connection, note, now, by or context.name, "retention.confirmed")

    await context.store.write(work)


def report_clock(verdict: ClockVerdict, mend: str) -> None:
    """Log that the clock is not trusted, or is again."""
    if verdict.trusted:
        _log.info("retention goes on", rule=verdict.rule.value, reason=verdict.sentence)
    else:
        _log.warning("retention waits", rule=verdict.rule.value, reason=verdict.sentence, mend=mend)


async def apply_retention(context: DeliveryContext, seconds: float) -> RetentionResult:
    """Remove what is too old or too much, unless another process does.

    It is called every so many seconds; the lease lasts twice as long.
    """
    store, limits = context.store, context.limits
    work = partial(leases.claim, name=LEASE, holder=context.name, seconds=seconds * 2)
    lease = await store.write(SharedWork(work, leases=[LEASE]))
    if lease is None:
        return RetentionResult()
    now = context.now()
    many = DeadLetterCause.of(context, "too many were waiting")
    dead = deleted = 0
    if await _trusts_clock(context):
        dead, deleted = await _remove_old(context, now)
    dead += await store.write(lambda c: dead_letters.move_excess(c, limits.buffer_rows, many))
    asleep = await store.read(lambda c: _asleep(c, now - int(limits.stranded_seconds * 1000)))
    waiting = await store.read(lambda c: _backlog(c, now))
    return RetentionResult(dead, deleted, asleep, waiting)


async def _remove_old(context: DeliveryContext, now: int) -> tuple[int, int]:
    """Remove what is too old; how many rows became dead letters and how many were deleted."""
    store, limits = context.store, context.limits
    old = DeadLetterCause.of(context, "waited too long")
    before = now - int(limits.buffer_seconds * 1000)
    dead = await store.write(lambda c: dead_letters.move_old(c, before, old))
    deleted = 0
    for column, seconds_kept in (
        (receipts.c.received_at, limits.receipt_seconds),
        (chats.c.delivered_at, limits.chat_seconds),
        (chat_authors.c.delivered_at, limits.chat_seconds),
        (messages.c.sent_at, limits.message_seconds),
        (requests.c.asked_at, limits.request_seconds),
        (dead_letter_rows.c.dead_at, limits.dead_seconds),
        (outbox.c.ended_at, limits.dead_seconds),
    ):
        end = now - int(seconds_kept * 1000)
        deleted += await store.write(
            lambda c, column=column, end=end: _delete_before(c, column, end)  # type: ignore[misc]
        )
    # Their buckets are full again, as those of people who never wrote.
    full = stranger_rates.c.full_at
    deleted += await store.write(lambda c: _delete_before(c, full, now * 1000))
    return dead, deleted + await _retain_journal(context, now)


async def _retain_journal(context: DeliveryContext, now: int) -> int:
    """Journal the counts of ended hours, and remove records that are too old; how many.

    Where an exporter runs, it removes what it has exported itself.
    """
    store, limits = context.store, context.limits
    await store.write(lambda c: unlinked.journal_ended_hours(c, now, context.name, context.ids))
    if not limits.journal_seconds:
        return 0
    before = now - int(limits.journal_seconds * 1000)
    streams = OWN_STREAMS if limits.is_exported else (*OWN_STREAMS, *EXPORTED_STREAMS)
    return sum(
        [await store.write(partial(_prune, stream=stream, before=before)) for stream in streams]
    )


def _prune(connection: Connection, stream: str, before: int) -> int:
    reach = journal.stream_ranges(connection).get(stream)
    if reach is None:
        return 0

    def old(limit: int) -> list[JournalEntry]:
        oldest = journal.read(connection, stream, after=reach.floor, limit=limit)
        return list(itertools.takewhile(lambda each: each.recorded_at < before, oldest))

    # Mostly the oldest one is young enough, and the rest need not be read.
    return journal.prune(connection, stream, old(_MOST)[-1].seq) if old(1) else 0


def _delete_before(connection: Connection, moment: "Column[Any]", end: int) -> int:
    table = moment.table
    key = tuple_(*table.primary_key)
    some = select(*table.primary_key).where(moment < end).order_by(moment).limit(_MOST)
    return connection.execute(delete(table).where(key.in_(some))).rowcount


# The oldest row of a queue is its first, which the primary key finds.
_FIRST = (
    select(buffer.c.created_at)
    .where(buffer.c.instance == queues.c.instance)
    .order_by(buffer.c.seq)
    .limit(1)
    .scalar_subquery()
)


def _asleep(connection: Connection, before: int) -> tuple[str, ...]:
    """Idle instances with a backlog, and others for whom a row has waited since before a time.

    The machine of the latter may have been frozen without a word, and its socket closed by others.
    """
    stranded = or_(queues.c.flipped == 1, before > _FIRST)
    some = exists().where(buffer.c.instance == queues.c.instance)
    query = select(queues.c.instance).where(some, stranded).limit(_MOST)
    return tuple(connection.execute(query).scalars())


def _backlog(connection: Connection, now: int) -> QueueBacklog:
    rows = connection.execute(select(func.count()).select_from(buffer)).scalar_one()
    oldest = connection.execute(select(func.min(_FIRST)).select_from(queues)).scalar()
    return QueueBacklog(rows, 0.0 if oldest is None else max(0, now - oldest) / 1000)
