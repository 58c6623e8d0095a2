"""Sessions: one turn at a time in each, many at once.

`Intake` stores events in the inbox, queues them in their sessions and acknowledges them.
`Sessions` owns the order of turns and their interruption. `AgentHost` runs the agent in them; an
agent's error ends its turn and nothing else.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import structlog

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.agent import Agent, Reply, Turn, run_agent
from accord.relay.gateway.inbox import OpenInbox, ReceivedEvent, StoredInbox, retry_store
from accord.relay.gateway.outbox import RecentChats, Requests
from accord.relay.gateway.settings import GatewaySettings
from accord.relay.gateway.socket import ConnectorSocket, SocketClosed
from accord.relay.rules.frames import (
    Descriptor,
    Inbound,
    InboundAck,
    InterruptInbound,
    Passthrough,
    Result,
    Send,
)
from accord.relay.rules.messages import MessageEvent, SessionRules, is_stop
from accord.storage import StoreError
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

T = TypeVar("T")

_log = structlog.stdlib.get_logger(__name__)


class TurnEnd(Enum):
    """How a turn ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    BROKEN_OFF = "broken off"
    """The gateway ends; the turn is begun again by the next one."""


RunTurn = Callable[[int, str], Coroutine[Any, Any, None]]
"""Runs the turn of an event, by its number and its session."""


@dataclass(eq=False, repr=False, slots=True)
class _SessionQueue:
    waiting: deque[int] = field(default_factory=deque)
    turn: asyncio.Task[None] | None = None
    interrupted: bool = False
    worker: asyncio.Task[None] | None = None


class Sessions:
    """The sessions that have turns to run, `turns` at once.

    `ended` is awaited after a turn, before the next one of its session starts.
    """

    def __init__(
        self, work: RunTurn, ended: Callable[[int, TurnEnd], Awaitable[None]], turns: int
    ) -> None:
        self._work = work
        self._ended = ended
        self._slots = asyncio.Semaphore(turns)
        self._sessions: dict[str, _SessionQueue] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closing = False

    @property
    def is_quiet(self) -> bool:
        """Whether no turn is running or waiting."""
        return not self._sessions

    def is_busy(self, session_key: str) -> bool:
        """Whether a turn of this session is running."""
        session = self._sessions.get(session_key)
        return session is not None and session.turn is not None

    def offer(self, number: int, session_key: str) -> None:
        """Queue an event behind those of its session that came before."""
        if self._closing:
            return  # it is in the inbox
        session = self._sessions.get(session_key)
        if session is None:
            session = self._sessions[session_key] = _SessionQueue()
            self._quiet.clear()
            session.worker = asyncio.create_task(self._serve(session_key, session))
        session.waiting.append(number)

    def interrupt(self, session_key: str) -> bool:
        """Cancel the running turn of one session; False when there is none."""
        session = self._sessions.get(session_key)
        if session is None or session.turn is None or session.interrupted:
            return False
        session.interrupted = True
        session.turn.cancel()
        return True

    async def quiet(self) -> None:
        """Wait until no turn is running or waiting."""
        await self._quiet.wait()

    async def close(self) -> None:
        """Break off every turn and start no more."""
        self._closing = True
        workers = [each.worker for each in self._sessions.values() if each.worker is not None]
        for session in list(self._sessions.values()):
            session.waiting.clear()
            if session.turn is not None:
                session.turn.cancel()
        # A worker that waits for a slot has no turn to cancel, and its queue is empty now.
        await asyncio.gather(*workers)

    async def _serve(self, key: str, session: _SessionQueue) -> None:
        try:
            while session.waiting:
                async with self._slots:
                    if session.waiting:
                        await self._take_turn(session.waiting.popleft(), key, session)
        finally:
            del self._sessions[key]
            if not self._sessions:
                self._quiet.set()

    async def _take_turn(self, number: int, key: str, session: _SessionQueue) -> None:
        session.interrupted = False
        session.turn = asyncio.create_task(self._work(number, key))
        await asyncio.wait({session.turn})
        turn, session.turn = session.turn, None
        ending = TurnEnd.DONE
        if turn.cancelled():
            ending = TurnEnd.INTERRUPTED if session.interrupted else TurnEnd.BROKEN_OFF
        elif (error := turn.exception()) is not None:
            _log.error("a turn failed", session=key, exc_info=error)
        await self._ended(number, ending)


IncomingFrame = Inbound | Passthrough | InterruptInbound


@dataclass(eq=False, repr=False)
class Intake:
    """Moves events from links through the inbox to their sessions."""

    inbox: OpenInbox
    sessions: Sessions
    chats: RecentChats
    settings: GatewaySettings
    counts: Counter[str]
    _session_rules: SessionRules = field(init=False)
    _queue: asyncio.Queue[tuple[ConnectorSocket, IncomingFrame]] = field(init=False)
    _open: int = 0

    def __post_init__(self) -> None:
        self._session_rules = self.settings.session_rules
        # More than a connector leaves unacknowledged; then the socket waits.
        self._queue = asyncio.Queue(self.settings.limits.frames)

    @property
    def is_empty(self) -> bool:
        """Whether every event was given to its session."""
        return self._open == 0

    async def put(self, link: ConnectorSocket, frame: IncomingFrame) -> None:
        """Take a frame; waits while too many are queued."""
        self._open += 1
        await self._queue.put((link, frame))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            waiting: list[tuple[ConnectorSocket, Inbound | Passthrough]] = []
            for link, frame in batch:
                if isinstance(frame, InterruptInbound):
                    # In order: after the events before it.
                    await self._take(waiting)
                    waiting = []
                    found = self.sessions.interrupt(frame.session_key)
                    self.counts["interrupts" if found else "interrupts of nothing"] += 1
                else:
                    waiting.append((link, frame))
            await self._take(waiting)
            self._open -= len(batch)

    async def _take(self, frames: list[tuple[ConnectorSocket, Inbound | Passthrough]]) -> None:
        read = [self._read(frame) for _, frame in frames]
        wanted = [delivery for delivery in read if delivery is not None]
        numbers = await retry_store(lambda: self.inbox.take(wanted), "take") if wanted else []
        for number, delivery in zip(numbers, wanted, strict=True):
            if number is None:
                self.counts["duplicates"] += 1
            else:
                await self._give(number, delivery)
        acks: dict[ConnectorSocket, list[InboundAck]] = {}
        for link, frame in frames:
            if frame.buffer_id is not None:
                acks.setdefault(link, []).append(InboundAck(frame.buffer_id))
        for link, told in acks.items():
            with suppress(SocketClosed):  # it is delivered and acknowledged again
                await link.send(told)

    def _read(self, frame: Inbound | Passthrough) -> ReceivedEvent | None:
        if isinstance(frame, Inbound):
            key = self._session_rules.key(frame.event.source)
            return ReceivedEvent(key, frame.event, buffer_id=frame.buffer_id, trace=frame.trace)
        forward = frame.forward
        event: MessageEvent | None = None
        try:
            event = self.settings.read_forward(forward)
        except Exception as error:  # noqa: BLE001 - a reader that somebody gave us
            _log.error("a forward could not be read", platform=forward.platform, exc_info=error)
        if event is None:
            self.counts["forwards not understood"] += 1
            return None
        return ReceivedEvent(
            self._session_rules.key(event.source),
            event,
            forward.platform or None,
            f"{forward.platform}.interaction_token" if forward.platform else None,
            frame.buffer_id,
            trace=frame.trace,
        )

    async def _give(self, number: int, delivery: ReceivedEvent) -> None:
        key = delivery.session_key
        self.counts["events"] += 1
        self.chats.remember(delivery)
        if self.sessions.is_busy(key):
            wants_stop = is_stop(delivery.event.text)
            if wants_stop or self.settings.when_busy == "interrupt":
                self.sessions.interrupt(key)
            if wants_stop:
                await retry_store(lambda: self.inbox.finish(number), "finish")
                return
        self.sessions.offer(number, key)


class AgentHost:
    """Runs one agent: its inbox, its sessions and its requests."""

    def __init__(
        self,
        agent: Agent,
        settings: GatewaySettings,
        new_id: Callable[[], str],
        stay_awake: Callable[[], None],
        counts: Counter[str],
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._stay_awake = stay_awake
        self._counts = counts
        self._chats = RecentChats(settings.limits.chats)
        self._descriptors: tuple[Descriptor, ...] = ()
        self._left: list[tuple[int, str]] = []
        self._inbox: OpenInbox | None = None
        self._sessions: Sessions | None = None
        self._intake: Intake | None = None
        self.requests = Requests(
            new_id, settings.limits, counts, clock, chance, settings.on_outcome
        )

    @property
    def is_quiet(self) -> bool:
        """Whether no turn, event or action is in progress."""
        return self.intake.is_empty and self.sessions.is_quiet and self.requests.is_empty

    @property
    def inbox(self) -> OpenInbox:
        """The open inbox."""
        return _opened(self._inbox)

    @property
    def intake(self) -> Intake:
        """Where events come in."""
        return _opened(self._intake)

    @property
    def sessions(self) -> Sessions:
        """The queues of turns."""
        return _opened(self._sessions)

    async def open(self, inbox: OpenInbox) -> None:
        """Start with an inbox; raises StoreError if it cannot be read."""
        settings = self._settings
        self._inbox = inbox
        self._left = await inbox.unfinished()
        await self.requests.open(inbox if isinstance(inbox, StoredInbox) else None)
        self._sessions = Sessions(self._run, self._ended, settings.limits.turns)
        self._intake = Intake(inbox, self._sessions, self._chats, settings, self._counts)

    def resume(self, descriptors: tuple[Descriptor, ...]) -> None:
        """Use these descriptors, and run what an earlier process left unfinished."""
        self._descriptors = descriptors
        left, self._left = self._left, []
        for number, key in left:
            self.sessions.offer(number, key)

    async def send(self, chat_id: str, content: str, reply_to: str | None) -> Result:
        """Send a message outside a turn."""
        place = self._chats.find(chat_id)
        action = Send(chat_id, content, reply_to, place.metadata)
        return await self.requests.perform(action, place.platform, place.bot_id)

    async def _run(self, number: int, session_key: str) -> None:
        """Let the agent answer an event."""
        delivery = await retry_store(lambda: self.inbox.begin(number), "begin")
        if delivery is None:
            return
        if delivery.attempt > self._settings.limits.attempts:
            self._counts["turns given up"] += 1
            _log.error("an event is given up", session=session_key, attempts=delivery.attempt - 1)
            return
        turn = self._turn(delivery)
        kind, attempt = SpanKind.CONSUMER, delivery.attempt
        with tracing.incoming_span("gateway turn", delivery.trace, kind, attempt=attempt):
            try:
                await self._answer(turn)
            except asyncio.CancelledError:
                turn.cancelled = True
                raise

    async def _ended(self, number: int, ending: TurnEnd) -> None:
        """Record how a turn ended; the next process runs again what was broken off."""
        self._stay_awake()
        self._counts[f"turns {ending.value}"] += 1
        try:
            if ending is TurnEnd.BROKEN_OFF:
                await self.inbox.put_back(number)
            else:
                await self.inbox.finish(number)
        except StoreError as error:
            _log.error("the end of a turn was not recorded", reason=str(error))

    def _turn(self, delivery: ReceivedEvent) -> Turn:
        platform = delivery.platform or delivery.event.source.platform
        named = [each for each in self._descriptors if each.platform == platform]
        descriptor = (named or self._descriptors)[0]
        limits, interrupt = self._settings.limits, self.sessions.interrupt
        return Turn(delivery, descriptor, self.requests, self._chats, limits, interrupt)

    async def _answer(self, turn: Turn) -> None:
        reply = turn.open_reply()
        typing = asyncio.create_task(self._type(turn, reply))
        try:
            try:
                async with aclosing(run_agent(self._agent, turn)) as said:
                    async for text in said:
                        await reply.add(text)
            except Exception as error:  # noqa: BLE001 - whatever an agent raises is its own
                await self._failed(turn, reply, error)
            else:
                await reply.finish()
        finally:
            typing.cancel()
            await reply.cancel()

    async def _failed(self, turn: Turn, reply: Reply, error: Exception) -> None:
        self._counts["agent failures"] += 1
        tracing.set_attributes(error=type(error).__name__)
        if isinstance(error, AccordError):
            _log.error("the agent failed", session=turn.session_key, reason=str(error))
        else:
            _log.error("the agent failed", session=turn.session_key, exc_info=error)
        await reply.finish()
        if self._settings.apology is not None and reply.refusal is None:
            await turn.reply(self._settings.apology)

    async def _type(self, turn: Turn, reply: Reply) -> None:
        while not reply.has_begun:
            result = await turn.typing()
            if not result.success:
                return
            await asyncio.sleep(self._settings.limits.typing)


def _opened(part: T | None) -> T:
    if part is None:
        raise RelayError(Code.CONFLICT, "the gateway does not run yet", mend="call run() first")
    return part
