"""The sockets that this process holds, and who is told of what.

Owns the rule that an instance has one live socket, the newest: here at once, elsewhere by the bus,
and by the sweep where a hint was lost. Hands committed rows to the socket that wants them, and lets
sleepers be woken. Never decides who receives what.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from sqlalchemy import Connection as Database
from sqlalchemy import bindparam, select

from accord.relay.connector.delivery.bus import Hint, RelayBus, Topic
from accord.relay.connector.delivery.connection import Connection
from accord.relay.connector.delivery.entries import Admitted, Queue, Row
from accord.relay.connector.delivery.tables import buffer, queues
from accord.relay.connector.storing import Storage
from accord.relay.wire.closing import REPLACED
from accord.relay.wire.frames import InterruptInbound
from accord.storage import StoreError

_LOOKUP = 500
_log = structlog.stdlib.get_logger(__name__)

_LOAD = (
    select(
        buffer.c.seq,
        buffer.c.kind,
        buffer.c.body,
        buffer.c.deliveries,
        buffer.c.created_at,
        buffer.c.traceparent,
    )
    .where(buffer.c.instance == bindparam("of"), buffer.c.seq > bindparam("after"))
    .order_by(buffer.c.seq)
    .limit(bindparam("most"))
)
_STANDING = select(queues.c.instance, queues.c.head, queues.c.epoch).where(
    queues.c.instance.in_(bindparam("instances", expanding=True))
)


class Hub:
    """Who is connected here.

    Args:
        store: Where rows are read from.
        bus: How other processes are told.
        wake: Pokes a sleeping instance.
        counts: What happened how often.
    """

    def __init__(
        self,
        store: Storage,
        bus: RelayBus,
        wake: Callable[[str], Awaitable[None]],
        counts: Counter[str],
    ) -> None:
        self._store = store
        self._bus = bus
        self._wake = wake
        self._counts = counts
        self._connections: dict[str, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Every connection of this process."""
        return tuple(self._connections.values())

    def find(self, instance: str) -> Connection | None:
        """The live socket of an instance, if this process holds it."""
        return self._connections.get(instance)

    async def attach(self, connection: Connection) -> bool:
        """Let a connection be its instance's one; False when a newer one is there already."""
        instance, epoch = connection.session.claim
        other = self._connections.get(instance)
        if other is not None and other.session.epoch > epoch:
            return False
        self._connections[instance] = connection
        tenant = connection.session.tenant
        self._bus.publish(Hint(Topic.OPENED, tenant, instance, epoch))
        if other is not None:
            self.start(other.close(REPLACED, "replaced"))
        return True

    def detach(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        instance = connection.session.instance
        if self._connections.get(instance) is connection:
            del self._connections[instance]

    def committed(self, admitted: list[Admitted], standing: dict[str, Queue]) -> None:
        """Hand on what was committed, and wake whoever sleeps."""
        fresh: dict[str, list[Row]] = defaultdict(list)
        for each in admitted:
            for instance, row in each.rows:
                fresh[instance].append(row)
        for instance, rows in fresh.items():
            queue = standing[instance]
            connection = self._connections.get(instance)
            if connection is not None:
                connection.offer(rows, queue.head)
            else:
                self._bus.publish(Hint(Topic.ROWS, queue.tenant, instance, queue.head))
            if queue.flipped:
                self._counts["wake asked"] += 1
                self.start(self._wake(instance))

    def heard(self, hint: Hint) -> None:
        """Follow a hint that concerns a socket of this process."""
        connection = self._connections.get(hint.instance)
        if connection is None or connection.session.tenant != hint.tenant:
            return
        if hint.topic is Topic.ROWS:
            connection.offer([], hint.number)
        elif hint.topic is Topic.OPENED and hint.number > connection.session.epoch:
            self.start(connection.close(REPLACED, "replaced"))
        elif hint.topic is Topic.INTERRUPT:
            connection.say(InterruptInbound(hint.session_key, hint.chat_id))

    def interrupt(self, tenant: str, instance: str, session_key: str, chat_id: str) -> None:
        """Tell the instance's socket, wherever it is, to stop one session's turn."""
        connection = self._connections.get(instance)
        if connection is not None:
            connection.say(InterruptInbound(session_key, chat_id))
        else:
            self._bus.publish(Hint(Topic.INTERRUPT, tenant, instance, 0, session_key, chat_id))

    async def sweep(self) -> None:
        """Look for what no hint told: new rows, and newer sockets elsewhere."""
        names = sorted(self._connections)
        for start in range(0, len(names), _LOOKUP):
            some = names[start : start + _LOOKUP]
            try:
                found = await self._store.read(partial(_standing, instances=some))
            except StoreError as error:
                _log.error("the sweep could not read", reason=str(error))
                return
            for instance, head, epoch in found:
                connection = self._connections.get(instance)
                if connection is None:
                    continue
                if epoch > connection.session.epoch:
                    self.start(connection.close(REPLACED, "replaced"))
                else:
                    connection.session.offer([], head)
                    await connection.look()

    async def load(self, instance: str, after: int, limit: int) -> list[Row]:
        """Rows of the buffer after a number."""
        values = {"of": instance, "after": after, "most": limit}

        def work(database: Database) -> list[Row]:
            return [Row(*row) for row in database.execute(_LOAD, values)]

        return await self._store.read(work)

    async def close(self, instance: str, code: int, reason: str) -> None:
        """Close an instance's socket, if this process holds it."""
        connection = self._connections.get(instance)
        if connection is not None:
            await connection.close(code, reason)

    async def close_all(self, code: int, reason: str) -> None:
        """Close every socket of this process."""
        closing = [each.close(code, reason) for each in self.connections]
        await asyncio.gather(*closing, *self._tasks, return_exceptions=True)

    def start(self, work: Awaitable[None]) -> None:
        """Do something without waiting for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("something failed that nobody waited for", exc_info=error)


def _standing(database: Database, instances: list[str]) -> list[tuple[str, int, int]]:
    rows = database.execute(_STANDING, {"instances": instances})
    return [(row.instance, row.head, row.epoch) for row in rows]
