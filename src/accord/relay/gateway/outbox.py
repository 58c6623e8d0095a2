"""Actions that a gateway requests of the connector.

Nothing here raises: what cannot be done is a failed `Result`. With a stored inbox, an action that
changes a chat is stored before it is sent, and sent again under the same id, after a reconnection
or a restart, until the connector says how it ended or its time is over; the actions of a chat in
their order. Without a store, a request whose socket ended before the answer is sent again on the
next socket for as long as its agent waits.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self

import orjson
import structlog
from cachetools import LRUCache
from sqlalchemy import Connection, Row, delete, func, insert, select, update

from accord.kernel import canonical
from accord.kernel.clock import Clock, SystemClock
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.inbox import ReceivedEvent, StoredInbox, actions, retry_store
from accord.relay.gateway.limits import GatewayLimits
from accord.relay.gateway.retention import GatewayRetention
from accord.relay.gateway.socket import ConnectorSocket, SocketClosed
from accord.relay.rules.connection import backoff
from accord.relay.rules.egress import (
    Attempt,
    OutboxDecision,
    OutboxStep,
    RetryLimits,
    decide,
    is_rate_limited,
    wait_asked,
)
from accord.relay.rules.frames import (
    Action,
    Edit,
    FollowUp,
    Outbound,
    OutboundResult,
    Outcome,
    Result,
    Send,
    Typing,
    reply_metadata,
    write_frame,
)
from accord.storage import Store
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

LOST: Final = Result(False, error="the connector did not answer", outcome=Outcome.UNKNOWN)
_PRUNE_EVERY: Final = 1000
_FULL_SECONDS: Final = 5.0
# By how much a clock may be corrected without being taken for set back.
_SET_BACK: Final = 1.0
_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ChatAddress:
    """How a chat is named to the connector."""

    platform: str | None = None
    bot_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, delivery: ReceivedEvent) -> Self:
        """The chat that an event came from."""
        source = delivery.event.source
        metadata = reply_metadata(source)
        if source.thread_id:
            metadata["thread_id"] = source.thread_id
        return cls(delivery.platform or source.platform, delivery.event.bot_id, metadata)


@dataclass(eq=False, repr=False)
class RecentChats:
    """The addresses of the `most` chats from which events came last."""

    most: int
    _places: LRUCache[str, ChatAddress] = field(init=False)

    def __post_init__(self) -> None:
        self._places = LRUCache(self.most)

    def remember(self, delivery: ReceivedEvent) -> None:
        """Remember the chat of an event."""
        self._places[delivery.event.source.chat_id] = ChatAddress.of(delivery)

    def find(self, chat_id: str) -> ChatAddress:
        """The address of a chat; empty if it is unknown."""
        return self._places.get(chat_id, ChatAddress())


@dataclass(frozen=True, slots=True)
class StoredAction:
    """An action in the store; times in milliseconds."""

    request_id: str
    lane: str
    line: bytes
    created_at: int
    written_at: int | None
    taken_at: int | None
    # How it ended, if it has.
    result: Result | None = None


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """An action in a gateway's outbox without its content; times in milliseconds."""

    number: int
    request_id: str
    platform: str | None
    lane: str
    op: str
    state: str
    created_at: int
    ended_at: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class OutboxBacklog:
    """How many actions wait, how long the oldest has waited, and how many failed and are kept."""

    rows: int = 0
    oldest_seconds: float = 0.0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class StoredActions:
    """The stored actions of one gateway. Every method may raise StoreError."""

    store: Store

    async def add(self, action: StoredAction) -> StoredAction | None:
        """Store an action; what is stored under its id already, if it is."""
        return await self.store.write(partial(_add, action=action))

    async def waiting(self) -> list[StoredAction]:
        """What has not ended, in order."""
        query = select(actions).where(actions.c.ended_at.is_(None)).order_by(actions.c.number)
        return await self.store.read(lambda c: [_read(row) for row in c.execute(query)])

    async def find(self, request_id: str) -> StoredAction | None:
        """The action with this id."""
        return await self.store.read(lambda c: _find(c, request_id))

    async def list_entries(self, limit: int, *, dead: bool | None = None) -> list[OutboxEntry]:
        """What waits in its order, then what failed, the newest first; or one of both."""
        return await self.store.read(lambda c: _list(c, limit, dead))

    async def backlog(self, now: float) -> OutboxBacklog:
        """How much waits and how long, and how much failed."""
        return await self.store.read(lambda c: _backlog(c, now))

    async def retry(self, numbers: Sequence[int], now: float, new_id: Callable[[], str]) -> int:
        """Let the next process send actions again as new ones; how many there were.

        One that failed gets another id, since the connector remembers how the old one ended.
        """
        return await self.store.write(partial(_retry, numbers=numbers, now=now, new_id=new_id))

    async def drop(self, numbers: Sequence[int], now: float) -> int:
        """Give up what waits, and forget the words of what failed; how many there were."""
        return await self.store.write(partial(_drop, numbers=numbers, now=now))

    async def change(self, request_id: str, **values: Any) -> None:
        """Change columns of an action."""
        await self._run(update(actions).where(_is(request_id)).values(**values))

    async def remove(self, request_id: str) -> None:
        """Forget an action."""
        await self._run(delete(actions).where(_is(request_id)))

    async def _run(self, statement: Any) -> None:
        def run(connection: Connection) -> None:
            connection.execute(statement)

        await self.store.write(run)


_is_waiting = actions.c.ended_at.is_(None)
_has_failed = actions.c.ended_at.is_not(None) & actions.c.line.is_not(None)
_DROPPED: Final = "the operator has dropped it"


def _list(connection: Connection, limit: int, dead: bool | None) -> list[OutboxEntry]:
    found: list[OutboxEntry] = []
    for is_dead in (False, True) if dead is None else (dead,):
        order = actions.c.ended_at.desc() if is_dead else actions.c.number
        query = select(actions).where(_has_failed if is_dead else _is_waiting).order_by(order)
        found += [_entry(row) for row in connection.execute(query.limit(limit - len(found)))]
    return found


def _entry(row: Row[Any]) -> OutboxEntry:
    asked = orjson.loads(row.line)
    result = None if row.result is None else Result.from_dict(orjson.loads(row.result))
    if result is not None:
        outcome = result.outcome or Outcome.PERMANENT
        state = "unknown" if outcome is Outcome.UNKNOWN else "failed"
    elif row.taken_at is not None:
        state = "queued by the connector"
    else:
        state = "waiting" if row.written_at is None else "sent, not answered"
    return OutboxEntry(
        row.number,
        row.request_id,
        asked.get("platform"),
        row.lane,
        asked["action"]["op"],
        state,
        row.created_at,
        row.ended_at,
        None if result is None else result.error,
    )


def _backlog(connection: Connection, now: float) -> OutboxBacklog:
    query = select(func.count(), func.min(actions.c.created_at)).where(_is_waiting)
    rows, oldest = connection.execute(query).one()
    failed = connection.execute(select(func.count()).where(_has_failed)).scalar_one()
    return OutboxBacklog(rows, 0.0 if oldest is None else max(0.0, now - oldest / 1000), failed)


def _retry(
    connection: Connection, numbers: Sequence[int], now: float, new_id: Callable[[], str]
) -> int:
    millis = int(now * 1000)
    chosen = _chosen(connection, numbers)
    for row in chosen:
        this = actions.c.number == row.number
        if row.ended_at is None:
            values: dict[str, Any] = {"created_at": millis, "written_at": None, "taken_at": None}
            connection.execute(update(actions).where(this).values(**values))
            continue
        asked = orjson.loads(row.line)
        asked["requestId"] = name = new_id()
        line = orjson.dumps(asked).decode() + "\n"
        connection.execute(update(actions).where(this).values(line=None))
        values = {"request_id": name, "lane": row.lane, "line": line, "created_at": millis}
        connection.execute(insert(actions).values(**values))
    return len(chosen)


def _drop(connection: Connection, numbers: Sequence[int], now: float) -> int:
    chosen = _chosen(connection, numbers)
    for row in chosen:
        values: dict[str, Any] = {"line": None}
        if row.ended_at is None:
            is_doubtful = row.written_at is not None or row.taken_at is not None
            outcome = Outcome.UNKNOWN if is_doubtful else Outcome.PERMANENT
            result = Result(False, error=_DROPPED, outcome=outcome)
            values |= {"result": _written(result)}
            values |= {"ended_at": int(now * 1000)}
        connection.execute(update(actions).where(actions.c.number == row.number).values(**values))
    return len(chosen)


def _chosen(connection: Connection, numbers: Sequence[int]) -> Sequence[Row[Any]]:
    query = select(actions).where(actions.c.number.in_(list(numbers)), _is_waiting | _has_failed)
    rows = connection.execute(query.order_by(actions.c.number)).all()
    if missing := sorted(set(numbers) - {row.number for row in rows}):
        raise RelayError(
            Code.NOT_FOUND,
            f"there is no action {missing[0]} in the gateway's outbox",
            mend="`accord relay gateway outbox list` shows them",
        )
    return rows


def _is(request_id: str) -> Any:
    return actions.c.request_id == request_id


def _find(connection: Connection, request_id: str) -> StoredAction | None:
    row = connection.execute(select(actions).where(_is(request_id))).first()
    return None if row is None else _read(row)


def _add(connection: Connection, action: StoredAction) -> StoredAction | None:
    if known := _find(connection, action.request_id):
        return known
    row = {
        "request_id": action.request_id,
        "lane": action.lane,
        "line": action.line.decode(),
        "created_at": action.created_at,
        "written_at": action.written_at,
    }
    connection.execute(insert(actions), row)
    return None


def _read(row: Row[Any]) -> StoredAction:
    return StoredAction(
        row.request_id,
        row.lane,
        (row.line or "").encode(),
        row.created_at,
        row.written_at,
        row.taken_at,
        None if row.result is None else Result.from_dict(orjson.loads(row.result)),
    )


@dataclass(eq=False, slots=True)
class _Entry:
    """A stored action that has not ended; times in seconds."""

    request_id: str
    lane: str
    line: bytes
    created_at: float
    # The wall clock and the other one when this process began with it.
    since: tuple[float, float]
    # Since when the connector may have received it, and whether that is stored.
    written_at: float | None = None
    is_marked: bool = False
    # Whether an earlier request had no answer.
    in_doubt: bool = False
    # Whether the clock was set back between that request and the start of this process.
    was_set_back: bool = False
    is_taken: bool = False
    is_withdrawn: bool = False
    # Whether the agent was told that it is taken, and not how it ended.
    is_promised: bool = False
    attempts: int = 0
    # An answer that came when nobody waited for it any more.
    late: Result | None = None
    stored: asyncio.Event = field(default_factory=asyncio.Event)
    # What the agent is told first, and the end.
    told: asyncio.Future[Result] = field(default_factory=lambda: _future())
    ended: asyncio.Future[Result] = field(default_factory=lambda: _future())


def _future() -> asyncio.Future[Result]:
    return asyncio.get_running_loop().create_future()


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    line: bytes
    answer: asyncio.Future[Result]
    again: bool


class Requests:
    """The actions in progress.

    Until `open` is called with a store, nothing is stored. `on_outcome` is called with the end of
    an action that was promised and not waited for.
    """

    def __init__(
        self,
        new_id: Callable[[], str],
        limits: GatewayLimits,
        counts: Counter[str],
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        on_outcome: Callable[[Result], None] | None = None,
    ) -> None:
        self._new_id = new_id
        self._limits = limits
        self._counts = counts
        self._clock = clock or SystemClock()
        self._chance = chance
        self._on_outcome = on_outcome
        self._slots = asyncio.Semaphore(limits.pending_outbound)
        self._pending: dict[str, _Request] = {}
        self._link: ConnectorSocket | None = None
        self._is_linked = asyncio.Event()
        self._stored: StoredActions | None = None
        self._retention: GatewayRetention | None = None
        self._entries: dict[str, _Entry] = {}
        self._lanes: dict[str, deque[_Entry]] = {}
        self._taken: dict[str, deque[_Entry]] = {}
        self._followers = asyncio.Semaphore(limits.followers)
        self._exchanges: dict[str, asyncio.Future[Result | None]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()
        self._ends = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in progress that the connector has not taken."""
        return not self._pending and all(each.is_taken for each in self._entries.values())

    @property
    def waiting(self) -> int:
        """How many stored actions have not ended."""
        return len(self._entries)

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest of them has waited."""
        waited = (self._now(each) - each.created_at for each in self._entries.values())
        return max(waited, default=0.0)

    async def open(self, inbox: StoredInbox | None) -> None:
        """Store actions beside an inbox from now on, and go on with what an earlier process left.

        Raises:
            StoreError: The store cannot be read.
        """
        if inbox is None:
            return
        self._stored = stored = StoredActions(inbox.store)
        self._retention = inbox.retention
        for each in await stored.waiting():
            entry = self._entry(each.request_id, each.lane, each.line, each.created_at / 1000)
            entry.is_promised = True
            entry.stored.set()
            if each.written_at is not None:
                entry.written_at, entry.is_marked = each.written_at / 1000, True
                entry.in_doubt = True
                entry.was_set_back = entry.written_at - entry.since[0] > _SET_BACK
            self._entries[entry.request_id] = entry
            if each.result is not None:
                self._end(entry, each.result)  # an earlier process may not have told it
            elif each.taken_at is not None:
                self._follow(entry)
            else:
                self._queue(entry)

    async def close(self) -> None:
        """Send nothing more; what was not sent stays stored."""
        for worker in list(self._workers):
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if self._writes:
            await asyncio.wait(self._writes, timeout=self._limits.idle_ack)
            for write in list(self._writes):
                write.cancel()

    async def perform(
        self,
        action: Action,
        platform: str | None = None,
        bot_id: str | None = None,
        *,
        request_id: str | None = None,
        chat_id: str | None = None,
        is_passing: bool = False,
    ) -> Result:
        """Perform an action on a platform; its result.

        Args:
            request_id: By what a stored action is known if it is asked for again.
            chat_id: The chat whose order it keeps, where the action does not name it.
            is_passing: It need not be stored, as another one will replace it.
        """
        is_fleeting = isinstance(action, Typing)
        if is_fleeting and self._link is None:
            return Result(False, error="not connected")
        is_lasting = isinstance(action, Send | Edit | FollowUp) and not is_passing
        with tracing.span("gateway request", SpanKind.CLIENT, op=action.op):
            if self._stored is not None and is_lasting:
                name = request_id or self._new_id()
                lane = str(chat_id or getattr(action, "chat_id", ""))
                return await self._perform_stored(
                    Outbound(name, action, platform, bot_id, tracing.current_trace()), lane
                )
            try:
                async with asyncio.timeout(self._limits.outbound), self._slots:
                    outbound = Outbound(
                        self._new_id(), action, platform, bot_id, tracing.current_trace()
                    )
                    return await self._ask(outbound, again=not is_fleeting)
            except TimeoutError:
                self._counts["actions without answer"] += 1
                why = f"no answer within {self._limits.outbound:g} seconds"
                return Result(False, error=why if self._link else f"{why}, and not connected")

    async def outcome(self, request_id: str) -> Result | None:
        """Wait for the end of a stored action; None if there is no such action."""
        entry = self._entries.get(request_id)
        if entry is not None:
            return await asyncio.shield(entry.ended)
        if self._stored is None:
            return None
        found = await self._stored.find(request_id)
        return None if found is None else found.result

    async def connected(self, link: ConnectorSocket) -> None:
        """Use this link from now on, and send again what was not answered."""
        self._link = link
        self._is_linked.set()
        for request in list(self._pending.values()):
            if request.again:
                await link.write(request.line)

    def disconnected(self) -> None:
        """Forget the link; requests wait for the next one."""
        self._link = None
        self._is_linked.clear()
        for answer in self._exchanges.values():
            if not answer.done():
                answer.set_result(None)

    def answered(self, frame: OutboundResult) -> None:
        """Take the connector's answer to a request."""
        name = frame.request_id
        exchange = self._exchanges.get(name)
        if exchange is not None and not exchange.done():
            exchange.set_result(frame.result)
        elif (entry := self._entries.get(name)) is not None:
            entry.late = entry.late or frame.result
        elif name not in self._pending:
            self._counts["answers to nothing"] += 1
        elif not self._pending[name].answer.done():
            self._pending[name].answer.set_result(frame.result)

    async def _ask(self, outbound: Outbound, *, again: bool) -> Result:
        line = self._line(outbound)
        if isinstance(line, Result):
            return line
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._pending[outbound.request_id] = _Request(line, answer, again)
        try:
            if self._link is not None:
                try:
                    await self._link.write(line)
                except SocketClosed:
                    if not again:
                        return Result(False, error="not connected")
            return await answer
        finally:
            del self._pending[outbound.request_id]

    def _line(self, outbound: Outbound) -> bytes | Result:
        """The frame as it is sent, or why it cannot be."""
        try:
            line = write_frame(outbound)
        except canonical.CanonicalError as error:
            return _refused(f"this cannot be sent: {error}")
        if len(line) > self._limits.action_bytes:
            return _refused(f"more than {self._limits.action_bytes} bytes")
        return line

    # Stored actions.

    async def _perform_stored(self, outbound: Outbound, lane: str) -> Result:
        line = self._line(outbound)
        if isinstance(line, Result):
            return line
        entry = self._entries.get(outbound.request_id)
        if entry is None:
            if len(self._entries) >= self._limits.outbox_rows:
                self._counts["actions refused"] += 1
                return _not_now("too many actions wait", _FULL_SECONDS)
            entry = self._entry(outbound.request_id, lane, line, self._clock.now())
            self._entries[entry.request_id] = entry
            # In its place before it is stored, so that actions keep the order of their calls.
            self._queue(entry)
            if (ended := await self._keep(entry)) is not None:
                return ended
        try:
            async with asyncio.timeout(self._limits.outbound):
                return await asyncio.shield(entry.told)
        except TimeoutError:
            self._counts["actions queued"] += 1
            entry.is_promised = True
            return Result(True, queued=True, request_id=entry.request_id)
        except asyncio.CancelledError:
            self._withdraw(entry)
            raise

    async def _keep(self, entry: _Entry) -> Result | None:
        """Store an action; its result if it has ended before, or could not be stored."""
        assert self._stored is not None
        stored, millis = self._stored, int(entry.created_at * 1000)
        # So that a mark of its own is not needed when it is sent at once.
        entry.is_marked = self._link is not None
        mark = millis if entry.is_marked else None
        made = StoredAction(entry.request_id, entry.lane, entry.line, millis, mark, None)
        known: StoredAction | None = None
        result: Result | None = None
        try:
            async with asyncio.timeout(self._limits.outbound):
                known = await retry_store(lambda: stored.add(made), "store an action")
        except TimeoutError:
            result = _not_now("the gateway's store failed", _FULL_SECONDS)
        except asyncio.CancelledError:
            self._withdraw(entry)
            raise
        if known is not None and known.result is not None:
            # A turn that is run again asks for what its earlier attempt has done.
            self._counts["actions done before"] += 1
            result = replace(known.result, request_id=entry.request_id)
        if result is None:
            entry.stored.set()
            return None
        self._forget(entry)
        entry.ended.set_result(result)
        return result

    def _withdraw(self, entry: _Entry) -> None:
        """Drop an action that nobody was told of and that was not sent."""
        if entry.told.done() or entry.written_at is not None or entry.is_promised:
            return
        self._forget(entry)
        assert self._stored is not None
        self._write(partial(self._stored.remove, entry.request_id), "remove an action")

    def _forget(self, entry: _Entry) -> None:
        entry.is_withdrawn = True
        entry.stored.set()
        self._entries.pop(entry.request_id, None)

    def _entry(self, request_id: str, lane: str, line: bytes, created_at: float) -> _Entry:
        since = (self._clock.now(), self._clock.monotonic())
        return _Entry(request_id, lane, line, created_at, since)

    def _queue(self, entry: _Entry) -> None:
        """Put an action behind the others of its lane."""
        queue = self._lanes.get(entry.lane)
        if queue is None:
            queue = self._lanes[entry.lane] = deque()
            self._start(self._work(entry.lane, queue))
        queue.append(entry)

    def _follow(self, entry: _Entry) -> None:
        """Ask from time to time how an action ended that the connector has taken."""
        entry.is_taken = True
        queue = self._taken.get(entry.lane)
        if queue is None:
            queue = self._taken[entry.lane] = deque()
            self._start(self._follow_lane(entry.lane, queue))
        queue.append(entry)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        worker = asyncio.create_task(work)
        self._workers.add(worker)
        worker.add_done_callback(self._worked)

    def _worked(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and (error := worker.exception()) is not None:
            _log.error("the outbox of the gateway failed", exc_info=error)

    async def _work(self, lane: str, queue: deque[_Entry]) -> None:
        while queue:
            entry = queue[0]
            await entry.stored.wait()
            if not entry.is_withdrawn:
                await self._bring(entry)
            queue.popleft()
        del self._lanes[lane]

    async def _bring(self, entry: _Entry) -> None:
        """Send an action until the connector has taken it, or it has ended."""
        while True:
            await self._is_linked.wait()
            if entry.is_withdrawn:
                return
            answer, entry.late = entry.late, None
            if answer is None:
                if entry.in_doubt and not self._may_repeat(entry):
                    await self._give_up(entry, LOST)
                    return
                answer = await self._send(entry)
            if answer is None:
                if entry.in_doubt and self._is_linked.is_set():
                    # The connector is there and does not answer.
                    await asyncio.sleep(backoff(entry.attempts, self._chance()))
                continue
            if answer.success and answer.queued:
                self._take(entry, answer)
                return
            decision = self._decide(entry, answer)
            if decision.step in (OutboxStep.EXPIRED, OutboxStep.UNKNOWN):
                await self._give_up(entry, _final(answer, decision))
                return
            if decision.step is not OutboxStep.RETRY:
                self._end(entry, answer)
                return
            self._counts["actions retried"] += 1
            if not entry.in_doubt:
                # It was not taken, so there is no doubt about it.
                entry.written_at, entry.is_marked = None, False
                await self._mark(entry, None)
            await asyncio.sleep(decision.pause)

    async def _send(self, entry: _Entry) -> Result | None:
        """Send a request once; None if there is no answer, or the link has changed meanwhile."""
        if not entry.is_marked:
            entry.is_marked = True
            await self._mark(entry, self._clock.now())
        async with self._slots:
            link = self._link
            if link is None or entry.is_withdrawn:
                return None
            if entry.written_at is None:
                entry.written_at = self._now(entry)
            entry.attempts += 1
            answer = await self._exchange(link, entry)
        if answer is None:
            entry.in_doubt = True
        return answer

    async def _exchange(self, link: ConnectorSocket, entry: _Entry) -> Result | None:
        answer: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._exchanges[entry.request_id] = answer
        try:
            async with asyncio.timeout(self._limits.outbound):
                await link.write(entry.line)
                return await answer
        except SocketClosed:
            return None
        except TimeoutError:
            self._counts["actions without answer"] += 1
            return None
        finally:
            del self._exchanges[entry.request_id]

    async def _follow_lane(self, lane: str, queue: deque[_Entry]) -> None:
        asked = 0
        while queue:
            entry = queue[0]
            # The connector answers such a question only after a while.
            first, longest = self._limits.follow, self._limits.longest_follow
            pause = backoff(asked, self._chance(), first=first, longest=longest)
            await asyncio.sleep(pause)
            await self._is_linked.wait()
            if not self._may_repeat(entry):
                # The connector may have forgotten it, and would do it again.
                await self._give_up(entry, LOST)
                queue.popleft()
                continue
            async with self._followers:
                answer, entry.late = entry.late, None
                answer = answer or await self._send(entry)
            asked += 1
            if answer is None or answer.queued or _is_passing(answer):
                continue
            self._end(entry, answer)
            queue.popleft()
            asked = 0
        del self._taken[lane]

    def _may_repeat(self, entry: _Entry) -> bool:
        return self._decide(entry, LOST).step is OutboxStep.RETRY

    def _decide(self, entry: _Entry, answer: Result) -> OutboxDecision:
        """What becomes of an action after an answer, or without one."""
        answer = _typed(answer)
        # An answer is about this request, whichever of its repetitions it answers, unless it says
        # only that it is not taken now.
        is_lost = answer is LOST or answer.outcome is Outcome.RETRYABLE
        attempt = Attempt(
            answer,
            max(1, entry.attempts),
            entry.created_at,
            self._now(entry),
            self._repeatable_until(entry) if is_lost else None,
            entry.in_doubt and is_lost,
        )
        # What the connector has queued ends there.
        expire_after = float("inf") if entry.is_taken else self._limits.outbox
        limits = RetryLimits(expire_after, self._limits.first_delay, self._limits.longest_delay)
        return decide(attempt, limits, self._chance())

    def _repeatable_until(self, entry: _Entry) -> float | None:
        """Until when the connector knows the request; None where that cannot be said."""
        if entry.written_at is None:
            return float("inf")
        if entry.was_set_back:
            return None
        told = None if self._link is None else self._link.request_seconds
        return entry.written_at + (self._limits.request_window if told is None else told)

    def _now(self, entry: _Entry) -> float:
        """The time, also when the clock was set back meanwhile."""
        wall, steady = entry.since
        return max(self._clock.now(), wall + self._clock.monotonic() - steady)

    def _take(self, entry: _Entry, answer: Result) -> None:
        """The connector has queued an action."""
        assert self._stored is not None
        entry.is_promised = True
        if not entry.told.done():
            entry.told.set_result(replace(answer, request_id=entry.request_id))
        self._follow(entry)
        taken = partial(self._stored.change, taken_at=int(self._clock.now() * 1000))
        self._write(partial(taken, entry.request_id), "mark an action as taken")

    async def _give_up(self, entry: _Entry, result: Result) -> None:
        """End an action by a decision of this side.

        It is stored before it is told: the connector might say something else if it was asked again
        after a crash.
        """
        assert self._stored is not None
        change = partial(self._stored.change, entry.request_id, result=_written(result))
        await retry_store(change, "record why an action is given up")
        self._end(entry, result)

    def _end(self, entry: _Entry, result: Result) -> None:
        """Record how an action ended, and tell whoever is to know."""
        assert self._stored is not None
        self._entries.pop(entry.request_id, None)
        ended_at = int(self._clock.now() * 1000)
        values: dict[str, Any] = {"result": _written(result), "ended_at": ended_at}
        if result.success:
            values["line"] = None  # what failed can be asked for again by an operator
        # Not waited for: without it, the connector is asked again.
        change = partial(self._stored.change, entry.request_id, **values)
        self._write(change, "record the end of an action")
        self._ends += 1
        if self._ends % _PRUNE_EVERY == 0:
            assert self._retention is not None
            self._write(self._retention.prune, "forget old actions")
        result = replace(result, request_id=entry.request_id)
        if not entry.told.done():
            entry.told.set_result(result)
        entry.ended.set_result(result)
        if not entry.is_promised:
            return
        self._counts["queued actions sent" if result.success else "queued actions failed"] += 1
        if not result.success:
            outcome = None if result.outcome is None else result.outcome.value
            why = (result.error or "")[:200]
            _log.warning(
                "a queued action failed", request=entry.request_id, outcome=outcome, error=why
            )
        if self._on_outcome is not None:
            try:
                self._on_outcome(result)
            except Exception as error:  # noqa: BLE001 - a function that somebody gave us
                _log.error("the outcome of an action could not be told", exc_info=error)

    async def _mark(self, entry: _Entry, at: float | None) -> None:
        """Store since when the connector may have received an action."""
        assert self._stored is not None
        millis = None if at is None else int(at * 1000)
        change = partial(self._stored.change, entry.request_id, written_at=millis)
        await retry_store(change, "mark an action as sent")

    def _write(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        async def write() -> None:
            await retry_store(work, what)

        task = asyncio.create_task(write())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)


def _typed(answer: Result) -> Result:
    """An answer with its outcome, where another connector says a rate limit in its text alone."""
    if answer.outcome is None and is_rate_limited(answer):
        wait = answer.retry_after if answer.retry_after is not None else wait_asked(answer)
        return replace(answer, outcome=Outcome.RETRYABLE, retry_after=wait)
    return answer


def _is_passing(answer: Result) -> bool:
    return not answer.success and _typed(answer).outcome is Outcome.RETRYABLE


def _final(answer: Result, decision: OutboxDecision) -> Result:
    if decision.step is OutboxStep.EXPIRED:
        error = decision.sentence
        return replace(answer, error=error, outcome=Outcome.PERMANENT, retry_after=None)
    return replace(answer, outcome=Outcome.UNKNOWN, retry_after=None)


def _written(result: Result) -> str:
    return orjson.dumps(result.to_dict()).decode()


def _refused(why: str) -> Result:
    return Result(False, error=why, outcome=Outcome.PERMANENT)


def _not_now(why: str, retry_after: float) -> Result:
    return Result(False, error=why, retry_after=retry_after, outcome=Outcome.RETRYABLE)
