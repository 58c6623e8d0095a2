"""Keeps the tables small: buries what waited too long, forgets what nobody needs any more.

One process at a time does so, under a lease. Owns no promise of delivery; whatever it removes is
either dead, and then kept as a letter, or long done with.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, delete, exists, func, select, tuple_

from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.connector.delivery import graveyard, leases
from accord.relay.connector.delivery.graveyard import Burial
from accord.relay.connector.delivery.limits import Limits
from accord.relay.connector.delivery.tables import (
    buffer,
    chats,
    dead_letters,
    messages,
    queues,
    receipts,
    requests,
)
from accord.relay.connector.storing import Storage

LEASE = "janitor"
# How many rows of each table one visit removes.
_MOST = 5000


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for gateways, as of a visit.

    Attributes:
        rows: How many rows wait in all.
        oldest_seconds: How long the oldest of them had waited.
    """

    rows: int = 0
    oldest_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tidied:
    """What a visit did.

    Attributes:
        buried: How many rows became dead letters.
        forgotten: How many rows of other tables were removed.
        sleepers: Instances that sleep while something waits for them.
        waiting: What waits in all.
    """

    buried: int = 0
    forgotten: int = 0
    sleepers: tuple[str, ...] = ()
    waiting: Waiting = Waiting()


class Janitor:
    """Tidies when it holds the lease."""

    def __init__(self, store: Storage, clock: Clock, source: str, limits: Limits) -> None:
        self._store = store
        self._clock = clock
        self._ids = UlidSource(clock)
        self._source = source
        self._limits = limits

    async def visit(self, seconds: float) -> Tidied:
        """Tidy up, unless another process does; the next visit is in `seconds`.

        Raises:
            StoreError: The store failed.
        """
        lease = await self._store.write(lambda c: leases.claim(c, LEASE, self._source, seconds * 2))
        if lease is None:
            return Tidied()
        now = int(self._clock.now() * 1000)
        limits = self._limits
        old, many = (
            Burial(self._ids.new(), now, self._source, reason)
            for reason in ("waited too long", "too many were waiting")
        )
        before = now - int(limits.buffer_seconds * 1000)
        buried = await self._store.write(lambda c: graveyard.bury_old(c, before, old))
        buried += await self._store.write(
            lambda c: graveyard.bury_excess(c, limits.buffer_rows, many)
        )
        forgotten = 0
        for column, kept in (
            (receipts.c.received_at, limits.receipt_seconds),
            (chats.c.delivered_at, limits.chat_seconds),
            (messages.c.sent_at, limits.message_seconds),
            (requests.c.asked_at, limits.request_seconds),
            (dead_letters.c.dead_at, limits.dead_seconds),
        ):
            end = now - int(kept * 1000)
            forgotten += await self._store.write(
                lambda c, column=column, end=end: _forget(c, column, end)  # type: ignore[misc]
            )
        sleepers = await self._store.read(_sleepers)
        waiting = await self._store.read(lambda c: _waiting(c, now))
        return Tidied(buried, forgotten, sleepers, waiting)


def _forget(connection: Connection, moment: "Column[Any]", end: int) -> int:
    table = moment.table
    key = tuple_(*table.primary_key)
    some = select(*table.primary_key).where(moment < end).order_by(moment).limit(_MOST)
    return connection.execute(delete(table).where(key.in_(some))).rowcount


def _sleepers(connection: Connection) -> tuple[str, ...]:
    some = exists().where(buffer.c.instance == queues.c.instance)
    query = select(queues.c.instance).where(queues.c.flipped == 1, some).limit(_MOST)
    return tuple(connection.execute(query).scalars())


def _waiting(connection: Connection, now: int) -> Waiting:
    """What waits at a time; the oldest row of a queue is its first, which the key finds."""
    rows = connection.execute(select(func.count()).select_from(buffer)).scalar_one()
    first = (
        select(buffer.c.created_at)
        .where(buffer.c.instance == queues.c.instance)
        .order_by(buffer.c.seq)
        .limit(1)
        .scalar_subquery()
    )
    oldest = connection.execute(select(func.min(first)).select_from(queues)).scalar()
    return Waiting(rows, 0.0 if oldest is None else max(0, now - oldest) / 1000)
