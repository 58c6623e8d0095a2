"""The gateways' connections of this process.

`RelayEndpoint` authenticates a gateway that dials, and `SocketConnection` answers its frames and
delivers its rows. `ConnectionHub` keeps one connection for each instance, the newest, and hands
committed rows to it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog
from sqlalchemy import Connection as Database
from sqlalchemy import bindparam, select
from starlette.types import Receive, Scope, Send

from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.relay.connector import dead_letters
from accord.relay.connector.authentication import close_reason
from accord.relay.connector.bus import BusHint, RelayBus, Topic
from accord.relay.connector.commands import CommandMenus
from accord.relay.connector.dead_letters import DeadLetterCause
from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.outbox import ConnectorOutbox, not_now
from accord.relay.connector.platform import PlatformWithCommands
from accord.relay.connector.queue import (
    AdmissionResult,
    BufferRow,
    QueueState,
    QueueWriter,
    read_buffer_id,
)
from accord.relay.connector.socket import (
    AsgiTransport,
    SocketSession,
    SocketState,
    SocketTransport,
    TokenBucket,
    bearer,
)
from accord.relay.connector.store import Principal, is_queue_empty, on_queue
from accord.relay.connector.tables import buffer, chats, queues
from accord.relay.errors import RelayError
from accord.relay.rules.connection import REPLACED, UNAUTHORIZED
from accord.relay.rules.frames import (
    BadLine,
    Described,
    Descriptor,
    Frame,
    GoingIdle,
    GoingIdleAck,
    Hello,
    HelloRefused,
    Inbound,
    InboundAck,
    Interrupt,
    InterruptInbound,
    LineReader,
    Outbound,
    OutboundResult,
    UnknownFrame,
    generic_descriptor,
    read_frame,
    write_frame,
)
from accord.relay.rules.messages import MessageEvent, is_stop, lookup_keys, stop_message
from accord.storage import StoreError
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

POLICY = 1008
TRY_LATER = 1013
NO_PLATFORM: Final = "no such platform"

_BYTES_PER_FRAME = 64 * 1024
# How much of a refused identity's name is kept.
_LONGEST_NAME = 80

_log = structlog.stdlib.get_logger(__name__)


@dataclass(eq=False, repr=False, slots=True)
class SocketConnection:
    """The socket of an authenticated gateway: answers its frames and delivers its rows."""

    context: DeliveryContext
    hub: "ConnectionHub"
    writer: QueueWriter
    outbox: ConnectorOutbox
    principal: Principal
    session: SocketSession
    transport: SocketTransport
    # Frames that belong to no row.
    _unsent: list[str] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _pump_task: asyncio.Task[None] | None = None
    _pending: int = 0
    _idle_asked: bool = False
    _idle_granted: bool = False
    _can_be_woken: bool = False
    _again: bool = False
    _hellos: int = 0
    # Whether an interrupt ends a turn of the gateway on every platform.
    _interrupts: bool = False
    _stuck_since: float | None = None
    # When the gateway was last heard, or first owed an answer to what was sent after that; then
    # how many pongs had come, and whether one was asked for since.
    _owed_since: float | None = None
    _pongs: int = 0
    _is_asked: bool = False
    _allowance: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        limits = self.context.limits
        self._allowance = TokenBucket(self.context.clock, limits.frames_per_second)

    async def serve(self) -> None:
        """Read frames until the socket ends."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(self.context.limits.hello_seconds, self._too_late, "no hello")
        reader = LineReader(self.context.limits.line_bytes)
        try:
            while self.session.state is not SocketState.CLOSED:
                message = await self.transport.receive()
                if message is None:
                    return
                self._heard()
                await self._read(reader, message)
        finally:
            late.cancel()
            if self.session.state is not SocketState.CLOSED:
                self.session.move(SocketState.CLOSED)
            for task in list(self._tasks):
                task.cancel()

    def offer(self, rows: list[BufferRow], head: int) -> None:
        """Rows were committed for this instance."""
        self.session.offer(rows, head)
        self.pump()

    def send_frame(self, frame: Frame) -> None:
        """Send a frame that belongs to no row."""
        self._unsent.append(write_frame(frame).decode())
        self.pump()

    def send_stop(self, written: str) -> None:
        """Send the message that ends a turn, unless the gateway's hello says that interrupts do."""
        if self._interrupts or self.session.state is SocketState.GREETING:
            return
        try:
            event = MessageEvent.from_dict(canonical.decode(written))
        except (canonical.CanonicalError, RelayError):
            return  # another version wrote it
        if is_stop(event.text):
            self.send_frame(Inbound(event))

    def pump(self) -> None:
        """Send what can be sent."""
        if self._pump_task is not None:
            self._again = True
        elif self.session.state is not SocketState.CLOSED:
            self._pump_task = self._start(self._pump())
            self._pump_task.add_done_callback(self._pumped)

    async def close(self, code: int, reason: str) -> None:
        """End the socket; rows that it did not acknowledge stay."""
        if self.session.state is SocketState.CLOSED:
            return
        self.session.move(SocketState.CLOSED)
        self.context.counts[f"closed {code}"] += 1
        try:
            async with asyncio.timeout(self.context.limits.send_seconds):
                await self.transport.close(code, reason)
        except TimeoutError:
            _log.warning("a socket did not close in time", instance=self.session.instance)

    async def check(self) -> None:
        """Resume after a lost hint, and close a socket that stopped acknowledging."""
        if self._unsent or self.session.is_due or self._idle_granted:
            self.pump()
        now = self.context.clock.monotonic()
        await self._check_silence(now)
        if not self.session.is_stuck:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > self.context.limits.ack_seconds:
            await self.close(TRY_LATER, "nothing was acknowledged")

    def _heard(self) -> None:
        """Something came from the gateway: it is alive, and gets what was buffered meanwhile."""
        self._owed_since = None
        if self.session.state is SocketState.SILENT:
            self.session.move(SocketState.DRAINING)
            self.pump()

    async def _check_silence(self, now: float) -> None:
        """Buffer for a gateway that may be frozen, and wake it.

        What was sent is not lost: its rows stay until they are acknowledged. One that only works
        on them answers a ping; where the server has no pings, it is drained as soon as it says
        anything.
        """
        session, pongs = self.session, self.transport.pongs
        silent = self.context.limits.silent_seconds
        if session.state is SocketState.SILENT and pongs != self._pongs:
            self._heard()
        if session.state not in (SocketState.DRAINING, SocketState.LIVE) or not session.unacked:
            self._owed_since = None
        elif self._owed_since is None or pongs != self._pongs:
            self._owed_since, self._pongs, self._is_asked = now, pongs, False
        elif not self._is_asked and now - self._owed_since >= silent / 3:
            self._is_asked = True
            self.transport.ping()
        elif now - self._owed_since >= silent:
            self._owed_since = None
            if await self.writer.flip(session.claim) and session.is_delivering:
                self.context.counts["silent sockets"] += 1
                _log.warning("a gateway is silent", instance=session.instance)
                session.move(SocketState.SILENT)
                self.context.counts["wake asked"] += 1
                await self.context.directory.wake(session.instance)

    async def _read(self, reader: LineReader, message: str | bytes) -> None:
        newline: Any = "\n" if isinstance(message, str) else b"\n"
        if message.count(newline) > self._allowance.most + self.context.limits.window:
            # More lines than it may send and acknowledge together: not worth parsing.
            await self._close_flooding()
            return
        dropped, blank = reader.dropped, reader.blank
        lines = reader.feed(message)
        dropped, blank = reader.dropped - dropped, reader.blank - blank
        self.context.counts["lines too long"] += dropped
        # What completes no frame costs as much as one, and so does each further piece of a large
        # message; frames are counted below, because acknowledgements are free.
        cost = dropped + blank + len(message) // _BYTES_PER_FRAME + (not lines)
        if cost and not await self._spend(cost):
            return
        acked: list[int] = []
        now = self.context.clock.now()
        for line in lines:
            frame = read_frame(line)
            if isinstance(frame, InboundAck):
                seq = read_buffer_id(frame.buffer_id, self.session.series)
                made = None if seq is None else self.session.ack(seq)
                if seq is not None and made is not None:
                    acked.append(seq)
                    self.context.delivery_seconds.add(now - made / 1000)
                    continue
                self.context.counts["acks of nothing"] += 1
            if not await self._spend(1):
                break
            await self._handle(frame)
        if acked:
            self.context.counts["acks"] += len(acked)
            self._stuck_since = None
            self.writer.acked(self.session.claim, acked)
            self.pump()

    async def _spend(self, frames: int) -> bool:
        """Whether the gateway may send as many frames; the socket is closed if not."""
        if self._allowance.spend(frames):
            return True
        await self._close_flooding()
        return False

    async def _close_flooding(self) -> None:
        await self.close(POLICY, "too many frames")

    async def _handle(self, frame: Frame | UnknownFrame | BadLine) -> None:
        match frame:
            case Hello():
                await self._greet(frame)
            case Outbound():
                self._act(frame)
            case Interrupt(key):
                self.context.counts["interrupts"] += 1
                self._start(self._interrupt(key))
            case GoingIdle():
                if self.session.state is SocketState.GREETING:
                    self.context.counts["frames before hello"] += 1
                elif not self._idle_asked:
                    self._idle_asked = True
                    self._start(self._go_idle())
            case InboundAck():
                pass
            case BadLine():
                self.context.counts["bad lines"] += 1
            case _:
                self.context.counts["unknown frames"] += 1

    async def _greet(self, hello: Hello) -> None:
        self._hellos += 1
        if self._hellos > self.context.limits.gateway_bots:
            # Each may be written to the store.
            await self.close(POLICY, "too many hellos")
            return
        try:
            answer = await self._answer_hello(hello)
        except StoreError as error:
            _log.error("a hello could not be answered", reason=str(error))
            await self.close(TRY_LATER, "try again later")
            return
        if isinstance(answer, str):
            self.context.counts["hellos refused"] += 1
            await self.close(POLICY, answer)
            return
        if isinstance(answer, HelloRefused):
            self._refuse(answer)
            return
        self._interrupts = self._interrupts or hello.interrupts
        self.send_frame(Described(answer, self.context.limits.request_seconds))
        if self.session.state is SocketState.GREETING:
            self.session.move(SocketState.DRAINING)
            self.pump()

    async def _answer_hello(self, hello: Hello) -> Descriptor | HelloRefused | str:
        """The descriptor of an identity, its refusal, or why the whole socket is refused."""
        directory, instance = self.context.directory, self.principal.instance
        platforms = self.context.fronted(hello.platform, hello.bot_id)
        if not platforms:
            reason = self._missing(hello)
            named = hello.platform[:_LONGEST_NAME], hello.bot_id[:_LONGEST_NAME]
            await directory.note_hello(self.principal, *named, reason)
            return HelloRefused(hello.platform, hello.bot_id, reason)
        if not await directory.choose_sessions(
            instance, hello.sessions, lambda c: is_queue_empty(c, instance), hello.declared
        ):
            return "session keys cannot change while something is kept under them"
        await directory.note_hello(self.principal, hello.platform, hello.bot_id, None)
        for platform in platforms:
            await directory.front(self.principal, platform.name, platform.bot_id)
            if isinstance(platform, PlatformWithCommands) and hello.command_manifest is not None:
                await self.hub.menus.offer(platform, instance, hello.command_manifest)
        described = [_with_ops(each.descriptor()) for each in platforms]
        return described[0] if len(described) == 1 else generic_descriptor(described)

    def _missing(self, hello: Hello) -> str:
        """Why a hello finds no platform here."""
        bots = [bot for name, bot in self.context.platforms if name == hello.platform]
        if not bots:
            return NO_PLATFORM
        if hello.bot_id:
            return "this platform has no such bot here"
        return "this platform has several bots here: name one"

    async def _interrupt(self, session_key: str) -> None:
        """Stop the turn of one session of this instance, if it has such a session."""
        tenant, instance = self.principal.tenant, self.principal.instance
        chat_id = await self.context.store.read(partial(_chat_of, instance, session_key))
        if chat_id is None:
            self.context.counts["interrupts of nothing"] += 1
        else:
            self.hub.interrupt(tenant, instance, session_key, chat_id)

    def _refuse(self, refused: HelloRefused) -> None:
        """Refuse one identity; the socket is closed if no other identity is accepted."""
        self.context.counts["hellos refused"] += 1
        _log.warning(
            "a hello was refused",
            instance=self.session.instance,
            platform=refused.platform,
            bot_id=refused.bot_id,
            reason=refused.error,
        )
        self.send_frame(refused)
        if self.session.state is SocketState.GREETING:
            # Gateways send all their hellos at once, so the others have arrived by then.
            loop = asyncio.get_running_loop()
            loop.call_later(self.context.limits.refused_seconds, self._too_late, refused.error)

    def _act(self, outbound: Outbound) -> None:
        refused = None
        if self.session.state is SocketState.GREETING:
            refused = "say hello first"
        elif self._pending >= self.context.limits.pending_outbound:
            refused = "too many actions are under way"
        if refused:
            self.context.counts["actions refused"] += 1
            self.send_frame(OutboundResult(outbound.request_id, not_now(refused)))
            return
        self._pending += 1
        # Not one of `_tasks`, which are cancelled with the socket: it is finished and recorded.
        task = asyncio.create_task(self._answer(outbound))
        task.add_done_callback(_report)

    async def _answer(self, outbound: Outbound) -> None:
        try:
            result = await self.outbox.act(self.principal, outbound)
        finally:
            self._pending -= 1
        if result is None:
            return
        self.send_frame(OutboundResult(outbound.request_id, result))
        if self.session.state is SocketState.CLOSED:
            await self.outbox.answer_lost(self.principal, outbound)

    async def _go_idle(self) -> None:
        try:
            can_be_woken = await self.context.directory.has_wake_url(self.session.instance)
            flipped = await self.writer.flip(self.session.claim)
        except StoreError as error:
            # Without an answer the gateway stays up, which is right.
            _log.error("an instance could not go idle", reason=str(error))
            self._idle_asked = False
            return
        self._idle_granted = flipped
        self._can_be_woken = can_be_woken
        self.pump()

    async def _pump(self) -> None:
        session = self.session
        while session.state is not SocketState.CLOSED:
            self._again = False
            if await self._flush():
                continue
            if self._idle_granted and session.state is not SocketState.IDLE:
                # Everything committed before the flip has been delivered.
                session.move(SocketState.IDLE)
                self._unsent.append(write_frame(GoingIdleAck(self._can_be_woken)).decode())
            elif (wanted := session.wants()) is not None:
                limit = self.context.limits.window
                rows = await self.hub.load(session.instance, wanted[0], limit)
                session.loaded(wanted, rows, is_all=len(rows) < limit)
                if session.dead:
                    await self._move_dead_rows()
            elif not session.is_drained or not await self._settle():
                return

    async def _move_dead_rows(self) -> None:
        claim, context = self.session.claim, self.context
        dead, self.session.dead = self.session.dead, []
        cause = DeadLetterCause.of(context, "delivered too often")
        work = partial(dead_letters.move_rows, claim=claim, seqs=dead, cause=cause)
        moved = await context.store.write(on_queue(claim[0], work))
        context.counts["dead letters"] += moved

    async def _flush(self) -> bool:
        """Write one message of what waits; False when there was nothing."""
        lines, self._unsent = self._unsent, []
        rows = self.session.take(self.context.limits.message_bytes)
        if not lines and not rows.lines:
            return False
        text = "".join((*lines, *rows.lines))
        began = self.context.clock.now()
        most = self.context.limits.message_bytes  # in characters, each of up to four bytes
        try:
            async with asyncio.timeout(self.context.limits.send_seconds):
                for start in range(0, len(text), most):
                    await self.transport.send(text[start : start + most])
        except TimeoutError:
            self.context.counts["slow sockets"] += 1
            await self.close(TRY_LATER, "too slow")
            return True
        self.context.counts["delivered"] += len(rows.sent) + len(rows.done)
        for each in rows.traces:
            kind, instance = SpanKind.PRODUCER, self.session.instance
            tracing.record_span("relay deliver", each, began, kind, instance=instance)
        if rows.sent:
            self.writer.sent(self.session.claim, rows.sent)
        if rows.done:
            self.writer.acked(self.session.claim, rows.done)
        return True

    async def _settle(self) -> bool:
        """Whether the queue was empty, so that rows are delivered live from now on."""
        if not await self.writer.settle(self.session.claim):
            return False
        if self.session.state is SocketState.DRAINING:
            self.session.move(SocketState.LIVE)
        return True

    def _too_late(self, reason: str) -> None:
        if self.session.state is SocketState.GREETING:
            self._start(self.close(POLICY, reason))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report)
        return task

    def _pumped(self, task: asyncio.Task[None]) -> None:
        self._pump_task = None
        if not task.cancelled() and task.exception() is None and self._again:
            self.pump()  # else the sweep tries again


def _with_ops(descriptor: Descriptor) -> Descriptor:
    return replace(descriptor, supported_ops=tuple(sorted(descriptor.ops)))


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        if isinstance(error, StoreError):
            _log.error("the store failed under a connection", reason=str(error))
        else:
            _log.error("a connection's task failed", exc_info=error)


_LOOKUP = 500

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
_QUEUE_HEADS = select(queues.c.instance, queues.c.head, queues.c.epoch).where(
    queues.c.instance.in_(bindparam("instances", expanding=True))
)


@dataclass(eq=False, repr=False)
class ConnectionHub:
    """The connections of this process by instance; other processes are reached by the bus."""

    context: DeliveryContext
    bus: RelayBus
    menus: CommandMenus = field(init=False)
    _connections: dict[str, SocketConnection] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.menus = CommandMenus(self.context, self.bus)

    @property
    def connections(self) -> tuple[SocketConnection, ...]:
        """Every connection of this process."""
        return tuple(self._connections.values())

    def find(self, instance: str) -> SocketConnection | None:
        """The connection of an instance, if this process holds it."""
        return self._connections.get(instance)

    async def attach(self, connection: SocketConnection) -> bool:
        """Make a connection its instance's one; False when there is a newer one already."""
        instance, epoch = connection.session.claim
        other = self._connections.get(instance)
        if other is not None and other.session.epoch > epoch:
            return False
        self._connections[instance] = connection
        tenant = connection.session.tenant
        self.bus.publish(BusHint(Topic.OPENED, tenant, instance, epoch))
        if other is not None:
            self.start(other.close(REPLACED, "replaced"))
        return True

    def detach(self, connection: SocketConnection) -> None:
        """Forget a connection that has ended."""
        instance = connection.session.instance
        if self._connections.get(instance) is connection:
            del self._connections[instance]

    def committed(self, admitted: list[AdmissionResult], states: dict[str, QueueState]) -> None:
        """Hand committed rows to their connections, and wake instances that sleep."""
        added: dict[str, list[BufferRow]] = defaultdict(list)
        for each in admitted:
            for instance, row in each.rows:
                added[instance].append(row)
        for instance, rows in added.items():
            queue = states[instance]
            connection = self._connections.get(instance)
            if connection is not None:
                connection.offer(rows, queue.head)
            else:
                self.bus.publish(BusHint(Topic.ROWS, queue.tenant, instance, queue.head))
            if queue.flipped:
                self.context.counts["wake asked"] += 1
                self.start(self.context.directory.wake(instance))

    def receive_hint(self, hint: BusHint) -> None:
        """Act on a hint of another process."""
        connection = self._connections.get(hint.instance)
        if connection is None or connection.session.tenant != hint.tenant:
            return
        if hint.topic is Topic.ROWS:
            connection.offer([], hint.number)
        elif hint.topic is Topic.OPENED and hint.number > connection.session.epoch:
            self.start(connection.close(REPLACED, "replaced"))
        elif hint.topic is Topic.INTERRUPT:
            connection.send_frame(InterruptInbound(hint.session_key, hint.chat_id))
        elif hint.topic is Topic.STOP:
            connection.send_stop(hint.session_key)

    def interrupt(self, tenant: str, instance: str, session_key: str, chat_id: str) -> None:
        """Stop one session's turn, by the instance's socket in this or another process."""
        connection = self._connections.get(instance)
        if connection is not None:
            connection.send_frame(InterruptInbound(session_key, chat_id))
        else:
            self.bus.publish(BusHint(Topic.INTERRUPT, tenant, instance, 0, session_key, chat_id))

    def stop(self, tenant: str, instance: str, event: MessageEvent) -> None:
        """Say `/stop` to a gateway that ends turns by no interrupt; nothing is stored of it."""
        if (said := stop_message(event)) is None:
            return
        written = canonical.encode(said.to_dict()).decode()
        connection = self._connections.get(instance)
        if connection is not None:
            connection.send_stop(written)
        else:
            self.bus.publish(BusHint(Topic.STOP, tenant, instance, 0, written))

    async def sweep(self) -> None:
        """Look for rows and for newer sockets elsewhere whose hints were lost."""
        names = sorted(self._connections)
        for start in range(0, len(names), _LOOKUP):
            some = names[start : start + _LOOKUP]
            try:
                found = await self.context.store.read(partial(_queue_heads, some))
            except StoreError as error:
                _log.error("queues could not be read", reason=str(error))
                return
            for instance, head, epoch in found:
                connection = self._connections.get(instance)
                if connection is None:
                    continue
                if epoch > connection.session.epoch:
                    self.start(connection.close(REPLACED, "replaced"))
                else:
                    connection.session.offer([], head)
                    await connection.check()

    async def load(self, instance: str, after: int, limit: int) -> list[BufferRow]:
        """Rows of the buffer after a number."""
        values = {"of": instance, "after": after, "most": limit}

        def work(database: Database) -> list[BufferRow]:
            return [BufferRow(*row) for row in database.execute(_LOAD, values)]

        return await self.context.store.read(work)

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
        """Run something in the background; a failure is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a background task failed", exc_info=error)


def _queue_heads(instances: list[str], database: Database) -> list[tuple[str, int, int]]:
    rows = database.execute(_QUEUE_HEADS, {"instances": instances})
    return [(row.instance, row.head, row.epoch) for row in rows]


def _chat_of(instance: str, session_key: str, database: Database) -> str | None:
    query = (
        select(chats.c.chat_id)
        .where(chats.c.instance == instance, chats.c.session_key.in_(lookup_keys(session_key)))
        .order_by(chats.c.delivered_at.desc())
    )
    return database.execute(query).scalar()


@dataclass(frozen=True, slots=True)
class RelayEndpoint:
    """The `/relay` socket as an ASGI application: authenticates gateways and serves them."""

    context: DeliveryContext
    hub: ConnectionHub
    writer: QueueWriter
    outbox: ConnectorOutbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept an upgrade and serve its socket until it ends."""
        pings = scope.get("extensions", {}).get("accord.ping", {})
        transport = AsgiTransport(receive, send, pings)
        if await transport.accept():
            await self.serve(transport, bearer(scope))

    async def serve(self, transport: SocketTransport, token: str | None) -> None:
        """Serve one accepted socket until it ends."""
        principal = await self._authenticate(transport, token)
        if principal is None:
            return
        try:
            queue = await self.writer.open(principal.instance, principal.tenant)
        except (RelayError, StoreError) as error:
            await self._try_later(transport, error)
            return
        session = SocketSession(principal.instance, queue, self.context.limits)
        connection = SocketConnection(
            self.context, self.hub, self.writer, self.outbox, principal, session, transport
        )
        if not await self.hub.attach(connection):
            await transport.close(REPLACED, "replaced")
            return
        try:
            # A revocation between authentication and `attach` did not close this socket.
            if await self._authenticate(transport, token) is not None:
                await connection.serve()
        finally:
            self.hub.detach(connection)

    async def _authenticate(
        self, transport: SocketTransport, token: str | None
    ) -> Principal | None:
        """Who dials; None when the socket was refused and closed."""
        try:
            return await self.context.directory.authenticate(token)
        except RelayError as error:
            reason = close_reason(error)
            self.context.counts[f"connect refused {reason.value}"] += 1
            await transport.close(UNAUTHORIZED, reason.value)
        except StoreError as error:
            await self._try_later(transport, error)
        return None

    async def _try_later(self, transport: SocketTransport, error: AccordError) -> None:
        _log.error("a gateway was told to connect later", reason=str(error))
        await transport.close(TRY_LATER, "try again later")
