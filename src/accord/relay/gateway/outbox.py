"""Actions that a gateway requests of the connector, and the chats that they go to.

A request whose socket ended before the answer is sent again on the next socket under the same
id. Nothing here raises: what cannot be done is a failed `Result`.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from accord.kernel import canonical
from accord.relay.gateway.inbox import ReceivedEvent
from accord.relay.gateway.rules import GatewayLimits
from accord.relay.gateway.socket import Link, SocketClosed
from accord.relay.rules.actions import Action, Result, Typing, reply_metadata
from accord.relay.rules.frames import Outbound, OutboundResult, write_frame
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind


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


class RecentChats:
    """The addresses of the `most` chats from which events came last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: OrderedDict[str, ChatAddress] = OrderedDict()

    def remember(self, delivery: ReceivedEvent) -> None:
        """Remember the chat of an event."""
        chat_id = delivery.event.source.chat_id
        self._places[chat_id] = ChatAddress.of(delivery)
        self._places.move_to_end(chat_id)
        if len(self._places) > self._most:
            self._places.popitem(last=False)

    def find(self, chat_id: str) -> ChatAddress:
        """The address of a chat; empty if it is unknown."""
        return self._places.get(chat_id, ChatAddress())


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    line: bytes
    answer: asyncio.Future[Result]
    again: bool


class Requests:
    """The actions in progress."""

    def __init__(
        self, new_id: Callable[[], str], limits: GatewayLimits, counts: Counter[str]
    ) -> None:
        self._new_id = new_id
        self._limits = limits
        self._counts = counts
        self._slots = asyncio.Semaphore(limits.pending_outbound)
        self._pending: dict[str, _Request] = {}
        self._link: Link | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in progress."""
        return not self._pending

    async def perform(
        self, action: Action, platform: str | None = None, bot_id: str | None = None
    ) -> Result:
        """Perform an action on a platform; its result."""
        is_fleeting = isinstance(action, Typing)
        if is_fleeting and self._link is None:
            return Result(False, error="not connected")
        with tracing.span("gateway request", SpanKind.CLIENT, op=action.op):
            try:
                async with asyncio.timeout(self._limits.outbound), self._slots:
                    return await self._ask(action, platform, bot_id, again=not is_fleeting)
            except TimeoutError:
                self._counts["actions without answer"] += 1
                why = f"no answer within {self._limits.outbound:g} seconds"
                return Result(False, error=why if self._link else f"{why}, and not connected")

    async def connected(self, link: Link) -> None:
        """Use this link from now on, and send again what was not answered."""
        self._link = link
        for request in list(self._pending.values()):
            if request.again:
                await link.write(request.line)

    def disconnected(self) -> None:
        """Forget the link; requests wait for the next one."""
        self._link = None

    def answered(self, frame: OutboundResult) -> None:
        """Take the connector's answer to a request."""
        request = self._pending.get(frame.request_id)
        if request is None:
            self._counts["answers to nothing"] += 1
        elif not request.answer.done():
            request.answer.set_result(frame.result)

    async def _ask(
        self, action: Action, platform: str | None, bot_id: str | None, *, again: bool
    ) -> Result:
        name = self._new_id()
        try:
            line = write_frame(Outbound(name, action, platform, bot_id, tracing.current_trace()))
        except canonical.CanonicalError as error:
            return Result(False, error=f"this cannot be sent: {error}")
        if len(line) > self._limits.action_bytes:
            return Result(False, error=f"more than {self._limits.action_bytes} bytes")
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._pending[name] = _Request(line, answer, again)
        try:
            if self._link is not None:
                try:
                    await self._link.write(line)
                except SocketClosed:
                    if not again:
                        return Result(False, error="not connected")
            return await answer
        finally:
            del self._pending[name]
