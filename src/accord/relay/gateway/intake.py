"""What comes in: taken into the inbox, given to its session, and only then acknowledged.

Owns the order from the socket to the sessions, interrupts included, and outlives connections: what
was taken is given to its session though the socket ended meanwhile. Never acknowledges what the
inbox does not hold.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Literal, TypeVar

import structlog

from accord.relay.gateway.chats import Chats
from accord.relay.gateway.inbox import Delivery, Taken
from accord.relay.gateway.link import Link
from accord.relay.gateway.sessions import Sessions
from accord.relay.gateway.sockets import Closed
from accord.relay.wire import (
    Dialect,
    Inbound,
    InboundAck,
    InterruptInbound,
    MessageEvent,
    Passthrough,
    PassthroughForward,
    backoff,
    session_key,
)
from accord.storage import StoreError

T = TypeVar("T")

Incoming = Inbound | Passthrough | InterruptInbound
WhenBusy = Literal["queue", "interrupt"]
ReadForward = Callable[[PassthroughForward], MessageEvent | None]

STOP: Final = "/stop"
"""What a user writes to end the running turn of their session."""

# More than a connector leaves unacknowledged; then the socket waits.
_QUEUED: Final = 1024
_log = structlog.stdlib.get_logger(__name__)


async def insist(work: Callable[[], Awaitable[T]], what: str) -> T:
    """Do something with the inbox, again and again while its store fails."""
    attempt = 0
    while True:
        try:
            return await work()
        except StoreError as error:
            _log.error("the inbox failed", doing=what, reason=str(error))
        await asyncio.sleep(backoff(attempt, 1.0))
        attempt += 1


class Intake:
    """The way from sockets to sessions.

    Args:
        inbox: Where events are kept.
        sessions: Where they have their turns.
        chats: What is known of chats.
        dialect: How sessions are named.
        when_busy: Whether a message in a busy session waits, or ends the running turn.
        read_forward: What a forwarded request amounts to.
        counts: What happened how often.
    """

    def __init__(
        self,
        inbox: Taken,
        sessions: Sessions,
        chats: Chats,
        *,
        dialect: Dialect,
        when_busy: WhenBusy,
        read_forward: ReadForward,
        counts: Counter[str],
    ) -> None:
        self._inbox = inbox
        self._sessions = sessions
        self._chats = chats
        self._dialect: Dialect = dialect
        self._when_busy = when_busy
        self._read_forward = read_forward
        self._counts = counts
        self._queue: asyncio.Queue[tuple[Link, Incoming]] = asyncio.Queue(_QUEUED)
        self._open = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything was given to its session."""
        return self._open == 0

    async def put(self, link: Link, frame: Incoming) -> None:
        """Take a frame; waits while too many do."""
        self._open += 1
        await self._queue.put((link, frame))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            waiting: list[tuple[Link, Inbound | Passthrough]] = []
            for link, frame in batch:
                if isinstance(frame, InterruptInbound):
                    # After what came before it, and before what came after.
                    await self._take(waiting)
                    waiting = []
                    found = self._sessions.interrupt(frame.session_key)
                    self._counts["interrupts" if found else "interrupts of nothing"] += 1
                else:
                    waiting.append((link, frame))
            await self._take(waiting)
            self._open -= len(batch)

    async def _take(self, frames: list[tuple[Link, Inbound | Passthrough]]) -> None:
        read = [self._read(frame) for _, frame in frames]
        wanted = [delivery for delivery in read if delivery is not None]
        numbers = await insist(lambda: self._inbox.take(wanted), "take") if wanted else []
        for number, delivery in zip(numbers, wanted, strict=True):
            if number is None:
                self._counts["duplicates"] += 1
            else:
                await self._give(number, delivery)
        acks: dict[Link, list[InboundAck]] = {}
        for link, frame in frames:
            if frame.buffer_id is not None:
                acks.setdefault(link, []).append(InboundAck(frame.buffer_id))
        for link, told in acks.items():
            with suppress(Closed):  # it is delivered again, known, and acknowledged then
                await link.send(told)

    def _read(self, frame: Inbound | Passthrough) -> Delivery | None:
        if isinstance(frame, Inbound):
            key = session_key(frame.event.source, dialect=self._dialect)
            return Delivery(key, frame.event, buffer_id=frame.buffer_id, trace=frame.trace)
        forward = frame.forward
        event: MessageEvent | None = None
        try:
            event = self._read_forward(forward)
        except Exception as error:  # noqa: BLE001 - a reader that somebody gave us
            _log.error("a forward could not be read", platform=forward.platform, exc_info=error)
        if event is None:
            self._counts["forwards not understood"] += 1
            return None
        return Delivery(
            session_key(event.source, dialect=self._dialect),
            event,
            forward.platform or None,
            f"{forward.platform}.interaction_token" if forward.platform else None,
            frame.buffer_id,
            trace=frame.trace,
        )

    async def _give(self, number: int, delivery: Delivery) -> None:
        key = delivery.session_key
        self._counts["events"] += 1
        self._chats.remember(delivery)
        if self._sessions.is_busy(key):
            is_stop = delivery.event.text.strip().lower() == STOP
            if is_stop or self._when_busy == "interrupt":
                self._sessions.interrupt(key)
            if is_stop:
                await insist(lambda: self._inbox.finish(number), "finish")
                return
        self._sessions.offer(number, key)
