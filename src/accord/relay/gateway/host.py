"""The host of an agent: runs it on every event, one turn at a time in each session.

An agent's error ends its turn and nothing else.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from typing import TypeVar

import structlog

from accord.kernel.errors import AccordError
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.agent import Agent, Turn, run_agent
from accord.relay.gateway.inbox import OpenInbox, ReceivedEvent
from accord.relay.gateway.outbox import RecentChats, Requests
from accord.relay.gateway.replies import Reply
from accord.relay.gateway.sessions import Intake, Sessions, TurnEnd, retry_inbox
from accord.relay.gateway.settings import GatewaySettings
from accord.relay.rules.actions import Result, Send
from accord.relay.rules.frames import Descriptor
from accord.storage import StoreError
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

T = TypeVar("T")

_log = structlog.stdlib.get_logger(__name__)


class AgentHost:
    """Runs one agent: its inbox, its sessions and its requests."""

    def __init__(
        self,
        agent: Agent,
        settings: GatewaySettings,
        new_id: Callable[[], str],
        stay_awake: Callable[[], None],
        counts: Counter[str],
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
        self.requests = Requests(new_id, settings.limits, counts)

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
        self._sessions = Sessions(self._run, self._ended, settings.limits.turns)
        self._intake = Intake(
            inbox,
            self._sessions,
            self._chats,
            dialect=settings.session_keys,
            when_busy=settings.when_busy,
            read_forward=settings.read_forward,
            counts=self._counts,
        )

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
        delivery = await retry_inbox(lambda: self.inbox.begin(number), "begin")
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
