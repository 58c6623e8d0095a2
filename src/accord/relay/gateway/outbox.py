"""Actions that a gateway requests of the connector, and the replies that they make up.

A request whose socket ended before the answer is sent again on the next socket under the same
id. Nothing here raises: what cannot be done is a failed `Result`. A reply is shown while the agent
writes it: as a draft, as one message that grows, or in segments. Nothing of it is lost: what could
not be edited in is sent.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol, Self

import structlog
from cachetools import LRUCache

from accord.kernel import canonical
from accord.relay.gateway.inbox import ReceivedEvent
from accord.relay.gateway.rules import GatewayLimits, Pace, complete_length, is_rate_limited
from accord.relay.gateway.socket import Link, SocketClosed
from accord.relay.rules.actions import Action, Result, Typing, reply_metadata
from accord.relay.rules.frames import Descriptor, Outbound, OutboundResult, write_frame
from accord.relay.rules.splitting import split_pieces
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

# The first message waits for a few words more.
_SETTLE: Final = 0.25
_TRIES: Final = 5
# After so many failed edits in a row, the rest is sent at the end.
_FAULTS: Final = 3
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


class ReplySink(Protocol):
    """Sends and edits the messages of a reply."""

    async def say(self, content: str, *, is_first: bool) -> Result:
        """Send a message into the chat of the turn."""
        ...

    async def edit(self, message_id: str, content: str) -> Result:
        """Change a message."""
        ...

    async def draft(self, content: str) -> Result:
        """Show an unfinished message."""
        ...


class Reply:
    """One streamed reply.

    Args:
        edits: Whether one message may grow in place.
        drafts: Whether it may be shown as a draft; after a refused draft there is no other.
        pause: The shortest time between two changes, in seconds.
    """

    def __init__(
        self,
        speaker: ReplySink,
        descriptor: Descriptor,
        *,
        edits: bool,
        pause: float,
        drafts: bool = False,
    ) -> None:
        self._speaker = speaker
        self._limit = descriptor.max_message_length
        self._unit = descriptor.len_unit
        self._edits = edits
        self._drafts = drafts
        self._drafted = ""
        self._pace = Pace(pause)
        self._text = ""
        self._message_id: str | None = None
        self._shown = ""
        self._said = 0
        self._faults = 0
        self._refusal: Result | None = None
        self._ending = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether anything was sent."""
        return self._said > 0

    @property
    def refusal(self) -> Result | None:
        """Why it could not be sent, if so; what follows is then dropped."""
        return self._refusal

    async def add(self, text: str) -> None:
        """Append text; waits while much more was written than could be shown."""
        if self._refusal is not None or not text:
            return
        self._text += text
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        if len(self._text) > 4 * self._limit:
            await self._rest()

    async def finish(self) -> None:
        """Show all of it."""
        self._ending.set()
        await self._rest()
        while self._text and self._refusal is None:
            if self._text.rstrip() != self._shown:
                await self._pause()
            await self._show(is_final=True)

    async def cancel(self) -> None:
        """Leave it as it is."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    async def _rest(self) -> None:
        if self._pump is None:
            return
        await asyncio.wait({self._pump})
        if not self._pump.cancelled():
            self._pump.result()

    async def _run(self) -> None:
        if not self.has_begun:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE):
                    await self._ending.wait()
        while self._refusal is None and self._has_news and not self._ending.is_set():
            await self._pause()
            await self._show(is_final=False)

    @property
    def _has_news(self) -> bool:
        if self._drafts:
            return self._text.rstrip() != self._drafted
        if self._edits:
            return self._text.rstrip() != self._shown and self._faults < _FAULTS
        return len(self._text) > self._limit or complete_length(self._text) > 0

    async def _show(self, *, is_final: bool) -> None:
        parts = split_pieces(self._text, self._limit, self._unit)
        if not parts:
            return
        for piece, following in pairwise(parts):
            await self._put(str(piece), must=True)
            self._consume(len(piece.opening) + len(piece.body), following.opening)
            await self._pause()
        # More text may have come meanwhile, which may not fit into this message.
        end = len(parts[-1].opening) + len(parts[-1].body)
        if self._drafts and not is_final:
            await self._draft(self._text[:end].rstrip())
            return
        if not self._edits:
            end = end if is_final else complete_length(self._text[:end])
            await self._put(self._text[:end], must=True)
            self._consume(end)
            return
        await self._put(self._text[:end], must=is_final)
        if is_final or (self._shown and self._message_id is None):
            # The latter on a platform that returns no message ids.
            self._edits = self._message_id is not None
            self._consume(end)

    def _consume(self, count: int, opening: str = "") -> None:
        """Remove the beginning of the text; the next message is a new one."""
        if count:
            self._text = opening + self._text[count:]
            self._message_id, self._shown, self._drafted = None, "", ""

    async def _draft(self, content: str) -> None:
        if not content or content == self._drafted:
            self._drafted = self._text.rstrip()
            return
        result = await self._speaker.draft(content)
        self._pace.record(result, asyncio.get_running_loop().time())
        if result.success:
            self._drafted = content
        elif not is_rate_limited(result):
            self._drafts = False

    async def _put(self, content: str, *, must: bool) -> None:
        content = content.rstrip()
        if not content.strip() or content == self._shown or self._refusal is not None:
            return
        for tries_left in reversed(range(_TRIES if must else 1)):
            result = await self._change(content)
            if result.success:
                return
            if is_rate_limited(result):
                if not must:
                    return
            elif self._message_id is None:
                tries_left = 0
            elif must:
                self._message_id = None  # it can no longer be edited: send a new one
            else:
                self._faults += 1
                return
            if not tries_left:
                self._refusal = result
                _log.warning("a reply could not be sent", error=(result.error or "")[:200])
                return
            await self._pause()

    async def _change(self, content: str) -> Result:
        if self._message_id is None:
            result = await self._speaker.say(content, is_first=self._said == 0)
        else:
            result = await self._speaker.edit(self._message_id, content)
        self._pace.record(result, asyncio.get_running_loop().time())
        if result.success:
            self._said += 1
            self._faults = 0
            self._shown = content
            self._message_id = self._message_id or result.message_id
        return result

    async def _pause(self) -> None:
        await asyncio.sleep(self._pace.wait(asyncio.get_running_loop().time()))
