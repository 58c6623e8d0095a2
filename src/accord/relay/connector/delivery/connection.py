"""One gateway's connection: reads its frames, and writes what its session owes.

Owns the loop around a `Session`: authentication comes before it, what the frames ask for is done
by the `Office` that it is given. A bad line is dropped and counted; only what endangers others ends
the connection.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import structlog

from accord import tracing
from accord.kernel.clock import Clock
from accord.metering import Durations
from accord.relay.connector.control.directory import Principal
from accord.relay.connector.delivery.allowance import Allowance
from accord.relay.connector.delivery.entries import Row, read_buffer_id
from accord.relay.connector.delivery.ledger import Ledger
from accord.relay.connector.delivery.limits import Limits
from accord.relay.connector.delivery.office import Office
from accord.relay.connector.delivery.session import Session, SocketState
from accord.relay.connector.delivery.transport import Transport
from accord.relay.wire.actions import Result
from accord.relay.wire.frames import (
    BadLine,
    Described,
    Frame,
    GoingIdle,
    GoingIdleAck,
    Hello,
    InboundAck,
    Interrupt,
    Outbound,
    OutboundResult,
    UnknownFrame,
    read_frame,
    write_frame,
)
from accord.relay.wire.lines import LineReader
from accord.storage import StoreError
from accord.tracing import SpanKind

POLICY = 1008
TRY_LATER = 1013

_IDLE = write_frame(GoingIdleAck()).decode()
_log = structlog.stdlib.get_logger(__name__)


class Connection:
    """A socket of an authenticated gateway."""

    __slots__ = (
        "_again",
        "_allowance",
        "_clock",
        "_counts",
        "_idle_asked",
        "_idle_granted",
        "_ledger",
        "_limits",
        "_office",
        "_outbox",
        "_pending",
        "_pump_task",
        "_stuck_since",
        "_tasks",
        "_took",
        "_transport",
        "principal",
        "session",
    )

    def __init__(
        self,
        principal: Principal,
        session: Session,
        transport: Transport,
        office: Office,
        ledger: Ledger,
        clock: Clock,
        limits: Limits,
        counts: Counter[str],
        took: Durations,
    ) -> None:
        self.principal = principal
        self.session = session
        self._transport = transport
        self._office = office
        self._ledger = ledger
        self._clock = clock
        self._limits = limits
        self._counts = counts
        self._took = took
        self._outbox: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_task: asyncio.Task[None] | None = None
        self._pending = 0
        self._idle_asked = False
        self._idle_granted = False
        self._again = False
        self._stuck_since: float | None = None
        self._allowance = Allowance(clock, limits.frames_per_second)

    async def serve(self) -> None:
        """Read frames until the socket ends."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(self._limits.hello_seconds, self._too_late)
        reader = LineReader(self._limits.line_bytes)
        try:
            while self.session.state is not SocketState.CLOSED:
                message = await self._transport.receive()
                if message is None:
                    return
                before = reader.dropped
                await self._read(reader.feed(message), reader.dropped - before)
        finally:
            late.cancel()
            if self.session.state is not SocketState.CLOSED:
                self.session.move(SocketState.CLOSED)
            for task in list(self._tasks):
                task.cancel()

    def offer(self, rows: list[Row], head: int) -> None:
        """Rows were committed for this instance."""
        self.session.offer(rows, head)
        self.pump()

    def say(self, frame: Frame) -> None:
        """Send a frame that belongs to no row."""
        self._outbox.append(write_frame(frame).decode())
        self.pump()

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
        self._counts[f"closed {code}"] += 1
        try:
            async with asyncio.timeout(self._limits.send_seconds):
                await self._transport.close(code, reason)
        except TimeoutError:
            _log.warning("a socket did not close in time", instance=self.session.instance)

    async def look(self) -> None:
        """Go on where a hint was lost, and end a socket that has acknowledged nothing for long."""
        if self._outbox or self.session.is_due or self._idle_granted:
            self.pump()
        now = self._clock.monotonic()
        if not self.session.is_stuck:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > self._limits.ack_seconds:
            await self.close(TRY_LATER, "nothing was acknowledged")

    async def _read(self, lines: list[bytes], dropped: int) -> None:
        if dropped:
            self._counts["lines too long"] += dropped
            await self._spend(dropped)
        acked: list[int] = []
        now = self._clock.now()
        for line in lines:
            frame = read_frame(line)
            if isinstance(frame, InboundAck):
                seq = read_buffer_id(frame.buffer_id, self.session.series)
                made = None if seq is None else self.session.ack(seq)
                if seq is not None and made is not None:
                    acked.append(seq)
                    self._took.add(now - made / 1000)
                    continue
                self._counts["acks of nothing"] += 1
            if not await self._spend(1):
                break
            await self._handle(frame)
        if acked:
            self._counts["acks"] += len(acked)
            self._stuck_since = None
            self._ledger.acked(self.session.claim, acked)
            self.pump()

    async def _spend(self, frames: int) -> bool:
        """Whether the gateway may send as many frames; one that may not is sent away."""
        if self._allowance.spend(frames):
            return True
        await self.close(POLICY, "too many frames")
        return False

    async def _handle(self, frame: Frame | UnknownFrame | BadLine) -> None:
        match frame:
            case Hello():
                await self._greet(frame)
            case Outbound():
                self._act(frame)
            case Interrupt(key):
                self._counts["interrupts"] += 1
                self._start(self._office.interrupt(self.principal, key))
            case GoingIdle():
                if self.session.state is SocketState.GREETING:
                    self._counts["frames before hello"] += 1
                elif not self._idle_asked:
                    self._idle_asked = True
                    self._start(self._go_idle())
            case InboundAck():
                pass
            case BadLine():
                self._counts["bad lines"] += 1
            case _:
                self._counts["unknown frames"] += 1

    async def _greet(self, hello: Hello) -> None:
        try:
            answer = await self._office.greet(self.principal, hello)
        except StoreError as error:
            _log.error("a hello could not be answered", reason=str(error))
            await self.close(TRY_LATER, "try again later")
            return
        if isinstance(answer, str):
            self._counts["hellos refused"] += 1
            await self.close(POLICY, answer)
            return
        self.say(Described(answer))
        if self.session.state is SocketState.GREETING:
            self.session.move(SocketState.DRAINING)
            self.pump()

    def _act(self, outbound: Outbound) -> None:
        refused = None
        if self.session.state is SocketState.GREETING:
            refused = "say hello first"
        elif self._pending >= self._limits.pending_outbound:
            refused = "too many actions are under way"
        if refused:
            self._counts["actions refused"] += 1
            self.say(OutboundResult(outbound.request_id, Result(False, error=refused)))
            return
        self._pending += 1
        # Not among the tasks that end with the socket: what was begun is done and recorded.
        task = asyncio.create_task(self._answer(outbound))
        task.add_done_callback(_report)

    async def _answer(self, outbound: Outbound) -> None:
        try:
            result = await self._office.act(self.principal, outbound)
        finally:
            self._pending -= 1
        if result is not None:
            self.say(OutboundResult(outbound.request_id, result))

    async def _go_idle(self) -> None:
        try:
            flipped = await self._ledger.flip(self.session.claim)
        except StoreError as error:
            # Without an answer the gateway stays up, which is right.
            _log.error("an instance could not go idle", reason=str(error))
            self._idle_asked = False
            return
        self._idle_granted = flipped
        self.pump()

    async def _pump(self) -> None:
        session = self.session
        while session.state is not SocketState.CLOSED:
            self._again = False
            if await self._flush():
                continue
            if self._idle_granted and session.state is not SocketState.IDLE:
                # What was committed before the flip has been delivered live.
                session.move(SocketState.IDLE)
                self._outbox.append(_IDLE)
            elif (wanted := session.wants()) is not None:
                limit = self._limits.window
                rows = await self._office.load(session.instance, wanted[0], limit)
                session.loaded(wanted, rows, is_all=len(rows) < limit)
                if session.dead:
                    dead, session.dead = session.dead, []
                    await self._office.bury(session.claim, dead, "delivered too often")
            elif not session.is_drained or not await self._settle():
                return

    async def _flush(self) -> bool:
        """Write one helping of what waits; False when there was nothing."""
        lines, self._outbox = self._outbox, []
        rows = self.session.take(self._limits.message_bytes)
        if not lines and not rows.lines:
            return False
        text = "".join((*lines, *rows.lines))
        began = self._clock.now()
        most = self._limits.message_bytes  # taken as characters, of which each has up to four
        try:
            async with asyncio.timeout(self._limits.send_seconds):
                for start in range(0, len(text), most):
                    await self._transport.send(text[start : start + most])
        except TimeoutError:
            self._counts["slow sockets"] += 1
            await self.close(TRY_LATER, "too slow")
            return True
        self._counts["delivered"] += len(rows.sent) + len(rows.done)
        for each in rows.traces:
            kind, instance = SpanKind.PRODUCER, self.session.instance
            tracing.past("relay deliver", each, began, kind, instance=instance)
        if rows.sent:
            self._ledger.sent(self.session.claim, rows.sent)
        if rows.done:
            self._ledger.acked(self.session.claim, rows.done)
        return True

    async def _settle(self) -> bool:
        """Whether the queue was found empty and everything goes live from now on."""
        if not await self._ledger.settle(self.session.claim):
            return False
        if self.session.state is SocketState.DRAINING:
            self.session.move(SocketState.LIVE)
        return True

    def _too_late(self) -> None:
        if self.session.state is SocketState.GREETING:
            self._start(self.close(POLICY, "no hello"))

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


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        if isinstance(error, StoreError):
            _log.error("the store failed under a connection", reason=str(error))
        else:
            _log.error("a connection's task failed", exc_info=error)
