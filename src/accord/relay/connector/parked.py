"""Parked events: those that the gate could not decide, because a platform did not answer.

They are stored before the platform is told that they were received. The question is asked again,
session by session and in order; what is known then decides. An event whose time is over becomes a
dead letter, and a replay of that is decided again. Nothing is kept in memory, so a restart goes on.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import orjson
import structlog
from blake3 import blake3
from sqlalchemy import Connection, update
from sqlalchemy import insert as sql_insert

from accord.relay.connector import vault
from accord.relay.connector.connections import ConnectionHub
from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.queue import (
    DELIVERIES,
    AdmissionResult,
    BufferRow,
    QueueState,
    RowState,
    SeenChat,
    new_queue,
    read_queues,
    seen_chat,
    store_chats,
)
from accord.relay.connector.store import (
    KeyedLock,
    ParkedBacklog,
    ParkedRow,
    ParkedSession,
    add_letters,
    due_parked_sessions,
    on_queue,
    parked_backlog,
    parked_letter,
    put_off_parked,
    read_parked,
    read_parked_session,
    take_parked,
    write_journal,
)
from accord.relay.connector.tables import buffer, queues
from accord.relay.errors import RelayError
from accord.relay.rules.decision_records import DecidedAgain, read_event, to_record
from accord.relay.rules.gate import ParkDecision, ParkLimits, ParkStep, decide, decide_parked
from accord.storage import JournalRecord

_log = structlog.stdlib.get_logger(__name__)

DECISIONS: Final = "relay.decisions"
# How many rows of a session one transaction moves.
_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class SettledRow:
    """A parked event with what becomes of it, why, and the record of that decision, if any.

    `chat` is where the instance may answer from then on.
    """

    row: ParkedRow
    step: ParkStep
    reason: str
    chat: SeenChat | None = None
    record: str | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """Everything that a transaction needs to settle rows of one instance."""

    rows: tuple[SettledRow, ...]
    id: str
    series: str
    now: int
    source: str


@dataclass(frozen=True, slots=True)
class SettlementResult:
    """The queue afterwards, the rows added to it with their events, and how many took each step."""

    queue: QueueState
    added: tuple[tuple[str, BufferRow], ...]
    counts: Mapping[ParkStep, int]


def record_id(event: str, instance: str, rounds: int) -> str:
    """The id of the record of a later decision; `rounds` is how often it was parked before."""
    return f"{event}.{blake3(instance.encode()).hexdigest()[:16]}.{rounds}"


@dataclass(eq=False, repr=False)
class ParkedEvents:
    """Decides parked events again; `chance` is the jitter of its pauses."""

    context: DeliveryContext
    hub: ConnectionHub
    chance: Callable[[], float] = random.random
    # As of the last time that somebody looked.
    backlog: ParkedBacklog = field(default_factory=ParkedBacklog)
    _turns: KeyedLock = field(default_factory=KeyedLock)

    async def sweep(self) -> None:
        """Ask again about every session that is due."""
        now, limits = self.context.now(), self.context.limits
        latest, most = int(limits.park_longest_pause_seconds * 1000), limits.park_sessions
        due = await self.context.store.read(lambda c: due_parked_sessions(c, now, latest, most))
        # Not all at once: a platform that answers again is not asked thousandfold.
        for start in range(0, len(due), limits.park_at_once):
            some = due[start : start + limits.park_at_once]
            for session, ended in zip(
                some,
                await asyncio.gather(*map(self.decide_session, some), return_exceptions=True),
                strict=True,
            ):
                if isinstance(ended, Exception):
                    # It stays parked, and is tried again at the next sweep.
                    _log.error(
                        "a parked event could not be decided",
                        instance=session.instance,
                        exc_info=ended,
                    )

    async def measure(self) -> None:
        """Count what is parked."""
        now = self.context.now()
        self.backlog = await self.context.store.read(lambda c: parked_backlog(c, now))

    async def decide_session(self, session: ParkedSession) -> None:
        """Decide the events of a session in order, until one must wait on."""
        async with self._turns.turn(session):
            while await self._decide_some(session):
                pass

    async def give_up(self, instance: str, reason: str) -> None:
        """Make dead letters of everything that is parked for an instance."""
        store = self.context.store
        while rows := await store.read(lambda c: read_parked(c, instance, _ROWS)):
            await self._settle([SettledRow(row, ParkStep.EXPIRE, reason) for row in rows])

    async def _decide_some(self, session: ParkedSession) -> bool:
        """Decide the first rows of a session; whether there may be more to decide now."""
        store = self.context.store
        rows = await store.read(lambda c: read_parked_session(c, session, _ROWS))
        settled: list[SettledRow] = []
        waiting: ParkDecision | None = None
        for row in rows:
            found = await self._decide(row)
            if isinstance(found, ParkDecision):
                waiting = found
                break
            settled.append(found)
        if settled:
            await self._settle(settled)
        if waiting is not None:
            self.context.counts["parked retries"] += 1
            due_at = self.context.now() + int(waiting.pause * 1000)
            attempts = rows[len(settled)].attempts + 1
            work = partial(put_off_parked, session=session, due_at=due_at, attempts=attempts)
            await store.write(on_queue(session.instance, work))
        return waiting is None and len(rows) == _ROWS

    async def _decide(self, row: ParkedRow) -> SettledRow | ParkDecision:
        """What becomes of an event by what is known now; a decision when it must wait on."""
        limits = self.context.limits
        try:
            gate = read_event(orjson.loads(row.gate))
        except (RelayError, ValueError):
            return SettledRow(row, ParkStep.EXPIRE, "what the gate decides by is damaged")
        facts = await self.context.directory.facts_of(gate)
        decision = decide(gate, facts)
        found = decide_parked(
            decision,
            row.tenant,
            row.instance,
            waited=(self.context.now() - row.created_at) / 1000,
            attempts=row.attempts + 1,
            limits=ParkLimits(
                limits.park_seconds, limits.park_pause_seconds, limits.park_longest_pause_seconds
            ),
            chance=self.chance(),
        )
        if found.step is ParkStep.WAIT:
            return found
        again = DecidedAgain(row.event, row.instance)
        record = orjson.dumps(to_record(gate, facts, decision, again)).decode()
        candidate = decision.candidate(row.instance)
        is_stranger = candidate is not None and candidate.is_open
        chat = seen_chat(gate, row.tenant, row.instance, row.session_key, stranger=is_stranger)
        reason = f"the platform did not answer in time: {found.verdict.sentence}"
        return SettledRow(row, found.step, reason, chat, record)

    async def _settle(self, rows: Sequence[SettledRow]) -> None:
        context = self.context
        settlement = Settlement(
            tuple(rows), context.ids.new(), secrets.token_hex(4), context.now(), context.name
        )
        instance = rows[0].row.instance
        work = on_queue(instance, lambda c: settle_rows(c, settlement))
        result = await context.store.write(work)
        for step, number in result.counts.items():
            context.counts[f"parked {step.value}"] += number
        context.counts["dead letters"] += result.counts.get(ParkStep.EXPIRE, 0)
        admitted = [AdmissionResult(event, True, ((instance, row),)) for event, row in result.added]
        self.hub.committed(admitted, {instance: result.queue})


def settle_rows(connection: Connection, settlement: Settlement) -> SettlementResult:
    """Deliver, refuse or give up parked events of one instance, in order.

    Rows that another process settled meanwhile are left out.
    """
    first, now = settlement.rows[0].row, settlement.now
    instance = first.instance
    queue = _lock_queue(connection, instance, first.tenant, settlement.series)
    there = take_parked(connection, [each.row.number for each in settlement.rows])
    rows = [each for each in settlement.rows if each.row.number in there]
    head, added, letters = queue.head, list[tuple[str, BufferRow]](), list[dict[str, object]]()
    pending: list[tuple[str, int, str]] = []
    dead: dict[str, list[tuple[str, int, int]]] = {}
    for each in rows:
        row = each.row
        vault.unpark(connection, instance, row.event, is_delivered=each.step is ParkStep.DELIVER)
        if each.step is ParkStep.REFUSE:
            continue
        head += 1
        pending.append((instance, head, row.event))
        if each.step is ParkStep.DELIVER:
            added.append((row.event, BufferRow(head, row.kind, row.body, 0, now, row.traceparent)))
            connection.execute(sql_insert(buffer).values(**_buffer_values(row, head, now)))
        else:
            has_record = each.record is not None
            made = parked_letter(row, head, each.reason, now, is_recorded=has_record)
            letters.append(made)
            dead.setdefault(each.reason, []).append((instance, head, head))
    add_letters(connection, letters)
    if head != queue.head:
        moved = update(queues).where(queues.c.instance == instance).values(head=head)
        connection.execute(moved)
    delivered = [each.chat for each in rows if each.step is ParkStep.DELIVER and each.chat]
    store_chats(connection, delivered, now)
    records = [
        JournalRecord(
            DECISIONS,
            record_id(each.row.event, instance, each.row.round),
            now,
            settlement.source,
            each.record,
        )
        for each in rows
        if each.record is not None
    ]
    changes: list[dict[str, object]] = [{RowState.PENDING.value: pending}] if pending else []
    changes += [{RowState.DEAD.value: ends, "reason": why} for why, ends in dead.items()]
    for place, change in enumerate(changes):
        name = f"{settlement.id}.{place}" if place else settlement.id
        body = orjson.dumps(change).decode()
        records.append(JournalRecord(DELIVERIES, name, now, settlement.source, body))
    if records:
        write_journal(connection, records)
    counts = Counter(each.step for each in rows)
    return SettlementResult(replace(queue, head=head), tuple(added), counts)


def _lock_queue(connection: Connection, instance: str, tenant: str, series: str) -> QueueState:
    found = read_queues(connection, [instance])
    if instance not in found:
        new_queue(connection, instance, tenant, series)
        found = read_queues(connection, [instance])
    return found[instance]


def _buffer_values(row: ParkedRow, seq: int, now: int) -> dict[str, object]:
    return {
        "instance": row.instance,
        "seq": seq,
        "tenant": row.tenant,
        "platform": row.platform,
        "scope_id": row.scope_id,
        "session_key": row.session_key,
        "event": row.event,
        "kind": row.kind,
        "body": row.body,
        "state": RowState.PENDING.value,
        "deliveries": 0,
        "epoch": 0,
        "created_at": now,
        "traceparent": row.traceparent,
    }
