"""A chat service in memory, its platform, and the connector as a platform sees it.

`MemoryChat` is the service, `MemoryPlatform` the connector's side of it, `KeptContext` a
`PlatformContext` that keeps what it is handed.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from accord.relay.connector import (
    Fence,
    FoundCapability,
    InboundEvent,
    InboundKind,
    PlatformContext,
    PlatformState,
)
from accord.relay.errors import Code, RelayError
from accord.relay.rules import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    GetChatInfo,
    MessageEvent,
    PassthroughForward,
    Result,
    Send,
    SessionSource,
    Typing,
)


@dataclass
class KeptContext:
    """A `PlatformContext` in memory.

    Attributes:
        taken: What was taken, in order, each event once.
        repeated: The ids of events that came again.
        remembered: Where to go on.
        standings: What the platform said of itself, in order: its state and, of trouble, why.
        stale: The scopes whose visibility may have changed.
        pauses: Which requests others should not send, and for how long.
        refusing: What taking an event raises while it is set.
    """

    fence: Fence | None = None
    taken: list[InboundEvent] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    remembered: dict[str, str] = field(default_factory=dict)
    standings: list[tuple[PlatformState, str]] = field(default_factory=list)
    stale: list[str | None] = field(default_factory=list)
    refusing: Exception | None = None
    pauses: list[tuple[str, float]] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _telling: "asyncio.Future[None] | None" = None

    @property
    def texts(self) -> list[str]:
        """The texts that were taken, in order."""
        return [each.event.text for each in self.taken]

    def ready(self) -> None:
        """The service is heard."""
        self.standings.append((PlatformState.READY, ""))
        self._tell()

    def troubled(self, error: RelayError) -> None:
        """Something is wrong."""
        self.standings.append((PlatformState.TROUBLED, str(error)))
        self._tell()

    async def ingest(self, inbound: InboundEvent) -> bool:
        """Take an event, once."""
        await asyncio.sleep(0)
        if self.refusing is not None:
            raise self.refusing
        seat = (inbound.platform, inbound.bot_id, inbound.event_id)
        if any((each.platform, each.bot_id, each.event_id) == seat for each in self.taken):
            self.repeated.append(inbound.event_id)
            return False
        self.taken.append(inbound)
        await self._told()
        return True

    def refuse(self, code: Code = Code.UNAVAILABLE) -> None:
        """Take nothing from now on."""
        self.refusing = RelayError(code, "the test says no")

    async def recall(self) -> Mapping[str, str]:
        """Where to go on."""
        return dict(self.remembered)

    async def recall_others(self) -> Sequence[Mapping[str, str]]:
        """There are no other shards."""
        return ()

    async def take_turn(self, name: str, seconds: float) -> bool:
        """Nobody else is here."""
        return True

    async def remember(self, state: Mapping[str, str]) -> None:
        """Keep where to go on."""
        self.remembered = dict(state)
        await self._told()

    def visibility_changed(self, scope_id: str | None = None) -> None:
        """Keep which scope is stale."""
        self.stale.append(scope_id)
        self._tell()

    def paused(self, what: str, seconds: float) -> None:
        """Keep what others should be told."""
        self.pauses.append((what, seconds))

    async def until(self, condition: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until something holds that changes with what the platform does here."""
        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(condition)

    def _tell(self) -> None:
        self._telling = asyncio.ensure_future(self._told())

    async def _told(self) -> None:
        async with self._news:
            self._news.notify_all()


@dataclass(frozen=True, slots=True)
class Channel:
    """A place to talk; `members` is None where everybody may look in."""

    id: str
    kind: str
    scope_id: str | None = None
    parent_id: str | None = None
    members: frozenset[str] | None = None
    managers: frozenset[str] = frozenset()


@dataclass(slots=True)
class Said:
    """A message of the bot, with every text that it ever had."""

    message_id: str
    chat_id: str
    texts: list[str]
    key: str


@dataclass(slots=True)
class MemoryChat:
    """The service.

    Attributes:
        fails: How many of the next actions fail.
        hang: Actions and questions wait for this to be set.
        blind: Whether nobody can be told who sees what.
        received: The events whose receipt it was told of, in order.
    """

    name: str = "memory"
    bot_id: str = "bot"
    idempotent: bool = False
    limit: int = 2000
    channels: dict[str, Channel] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    typed: list[str] = field(default_factory=list)
    followed: list[tuple[str, str]] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    fails: int = 0
    hang: asyncio.Event | None = None
    blind: bool = False
    _waiting: dict[str, InboundEvent] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def channel(self, id: str, kind: str = "group", **details: Any) -> Channel:  # noqa: A002
        """Open a channel."""
        self.channels[id] = Channel(id, kind, **details)
        return self.channels[id]

    def write(
        self,
        user_id: str,
        chat_id: str,
        text: str,
        *,
        event_id: str | None = None,
        kind: InboundKind = InboundKind.MESSAGE,
        addressed: bool = False,
        is_bot: bool = False,
        found: Sequence[FoundCapability] = (),
        forward: PassthroughForward | None = None,
    ) -> InboundEvent:
        """Somebody writes something; whoever listens is told. The event, for reference."""
        channel = self.channels[chat_id]
        number = next(self._numbers)
        name = event_id or f"e{number}"
        source = SessionSource(
            platform=self.name,
            chat_id=chat_id,
            chat_type=channel.kind,
            user_id=user_id,
            user_name=user_id.title(),
            thread_id=chat_id if channel.kind == "thread" else None,
            scope_id=channel.scope_id,
            parent_chat_id=channel.parent_id,
            message_id=f"m{number}",
        )
        event = MessageEvent(text, source, message_id=f"m{number}", bot_id=self.bot_id)
        inbound = InboundEvent(
            self.name,
            self.bot_id,
            name,
            event,
            kind=kind,
            forward=forward,
            author_is_bot=is_bot,
            addressed=addressed,
            found=tuple(found),
        )
        self._waiting[name] = inbound
        self._news.set()
        return inbound

    def repeat(self, inbound: InboundEvent) -> None:
        """Tell of an event again, as services do when they did not hear that it was received."""
        self._waiting[inbound.event_id] = inbound
        self._news.set()

    @property
    def unreceived(self) -> tuple[str, ...]:
        """The events whose receipt it was not told of."""
        return tuple(self._waiting)

    async def page(self) -> list[InboundEvent]:
        """What waits to be received, in order; waits until there is something."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        return list(self._waiting.values())

    def receive(self, inbound: InboundEvent) -> None:
        """Be told that an event was received."""
        if self._waiting.pop(inbound.event_id, None) is not None:
            self.received.append(inbound.event_id)

    async def trouble(self) -> bool:
        """Hang or fail, as it was told to; whether this action fails."""
        if self.hang is not None:
            await self.hang.wait()
        if self.fails:
            self.fails -= 1
            return True
        return False

    def say(self, chat_id: str, text: str, key: str) -> Said:
        """The bot says something; under a key that it knows it says nothing more."""
        if self.idempotent:
            for known in self.said:
                if known.key == key:
                    return known
        made = Said(f"b{next(self._numbers)}", chat_id, [text], key)
        self.said.append(made)
        return made


class MemoryPlatform:
    """The connector's side of a `MemoryChat`, for one process."""

    def __init__(self, chat: MemoryChat) -> None:
        self.chat = chat
        self.context: PlatformContext | None = None
        self.routes: Sequence[Any] = ()

    @property
    def name(self) -> str:
        """The platform's name."""
        return self.chat.name

    @property
    def bot_id(self) -> str:
        """The bot's own id."""
        return self.chat.bot_id

    @property
    def idempotent(self) -> bool:
        """Whether a repeated key changes nothing."""
        return self.chat.idempotent

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return Descriptor(
            platform=self.name,
            label="Memory",
            max_message_length=self.chat.limit,
            supports_draft_streaming=False,
            supports_edit=True,
            supports_threads=True,
            markdown_dialect="plain",
            len_unit="chars",
        )

    def bind(self, context: PlatformContext) -> None:
        """Keep the way in for webhooks."""
        self.context = context

    async def run(self, context: PlatformContext) -> None:
        """Hand on what comes, a page at a time, and tell the service what was received."""
        context.ready()
        while True:
            page = await self.chat.page()
            done = await asyncio.gather(
                *(context.ingest(each) for each in page), return_exceptions=True
            )
            for inbound, error in zip(page, done, strict=True):
                if isinstance(error, bool):
                    self.chat.receive(inbound)
                elif not isinstance(error, RelayError) or error.code is not Code.BAD_REQUEST:
                    raise error

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Do what was asked."""
        if await self.chat.trouble():
            return Result(False, error="the service failed")
        match action:
            case Send(chat_id, content):
                return Result(True, self.chat.say(chat_id, content, idempotency_key).message_id)
            case Edit(_, message_id, content):
                for said in self.chat.said:
                    if said.message_id == message_id:
                        said.texts.append(content)
                        return Result(True, message_id)
                return Result(False, error="there is no such message")
            case Typing(chat_id):
                self.chat.typed.append(chat_id)
                return Result(True)
            case GetChatInfo(chat_id):
                info = {"name": chat_id, "type": self.chat.channels[chat_id].kind}
                return Result(True, chat_info=info)
            case FollowUp(_, _, content):
                assert capability is not None
                self.chat.followed.append((capability.get_secret_value(), content))
                return Result(True, f"f{len(self.chat.followed)}")

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel."""
        return await self._may(
            channel_id, lambda each: each.members is None or user_id in each.members
        )

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel."""
        return await self._may(channel_id, lambda each: user_id in each.managers)

    async def _may(self, channel_id: str, rule: Callable[[Channel], bool]) -> bool | None:
        if self.chat.blind:
            return None
        channel = self.chat.channels.get(channel_id)
        return None if channel is None else rule(channel)
