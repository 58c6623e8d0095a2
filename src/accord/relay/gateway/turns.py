"""Runs an agent on an event: typing indicator, streamed answer, and what follows a failure.

Owns the border between the gateway and the agent. An agent's mistake ends its turn and nothing
else; it is told to the log, and to the user as an apology.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing

import structlog

from accord import tracing
from accord.kernel.errors import AccordError
from accord.relay.gateway.agents import Agent, spoken
from accord.relay.gateway.chats import Chats
from accord.relay.gateway.inbox import Delivery, Taken
from accord.relay.gateway.intake import insist
from accord.relay.gateway.limits import Limits
from accord.relay.gateway.outbound import Requests
from accord.relay.gateway.replies import Reply
from accord.relay.gateway.sessions import Ending
from accord.relay.gateway.turn import Turn
from accord.relay.wire import Descriptor
from accord.storage import StoreError
from accord.tracing import SpanKind

_log = structlog.stdlib.get_logger(__name__)


class Turns:
    """The turns of one agent.

    Args:
        agent: Who answers.
        inbox: Where events are kept.
        requests: How answers go out.
        chats: What is known of chats.
        describe: The descriptor of a platform.
        interrupt: Ends the running turn of a session.
        apology: What a user is told when the agent failed; None for nothing.
        limits: How often a turn is begun, and the pace of answers.
        counts: What happened how often.
    """

    def __init__(
        self,
        agent: Agent,
        inbox: Taken,
        requests: Requests,
        chats: Chats,
        *,
        describe: Callable[[str | None], Descriptor],
        interrupt: Callable[[str], bool],
        apology: str | None,
        limits: Limits,
        counts: Counter[str],
    ) -> None:
        self._agent = agent
        self._inbox = inbox
        self._requests = requests
        self._chats = chats
        self._describe = describe
        self._interrupt = interrupt
        self._apology = apology
        self._limits = limits
        self._counts = counts

    async def run(self, number: int, session_key: str) -> None:
        """Let the agent answer an event."""
        delivery = await insist(lambda: self._inbox.begin(number), "begin")
        if delivery is None:
            return
        if delivery.attempt > self._limits.attempts:
            self._counts["turns given up"] += 1
            _log.error("an event is given up", session=session_key, attempts=delivery.attempt - 1)
            return
        turn = self._turn(delivery)
        kind, attempt = SpanKind.CONSUMER, delivery.attempt
        with tracing.entry("gateway turn", delivery.trace, kind, attempt=attempt):
            try:
                await self._answer(turn)
            except asyncio.CancelledError:
                turn.cancelled = True
                raise

    async def ended(self, number: int, ending: Ending) -> None:
        """Record how a turn ended; what was broken off is begun again by the next process."""
        self._counts[f"turns {ending.value}"] += 1
        try:
            if ending is Ending.BROKEN_OFF:
                await self._inbox.put_back(number)
            else:
                await self._inbox.finish(number)
        except StoreError as error:
            _log.error("the end of a turn was not recorded", reason=str(error))

    def _turn(self, delivery: Delivery) -> Turn:
        descriptor = self._describe(delivery.platform or delivery.event.source.platform)
        requests, chats = self._requests, self._chats
        return Turn(delivery, descriptor, requests, chats, self._limits, self._interrupt)

    async def _answer(self, turn: Turn) -> None:
        reply = turn.open_reply()
        typing = asyncio.create_task(self._type(turn, reply))
        try:
            try:
                async with aclosing(spoken(self._agent, turn)) as said:
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
        tracing.tell(error=type(error).__name__)
        if isinstance(error, AccordError):
            _log.error("the agent failed", session=turn.session_key, reason=str(error))
        else:
            _log.error("the agent failed", session=turn.session_key, exc_info=error)
        await reply.finish()
        if self._apology is not None and reply.refusal is None:
            await turn.reply(self._apology)

    async def _type(self, turn: Turn, reply: Reply) -> None:
        while not reply.has_begun:
            result = await turn.typing()
            if not result.success:
                return
            await asyncio.sleep(self._limits.typing)
