"""How Discord reaches us: by the gateway, and by interactions that it posts.

A gateway session is resumed where possible. A message is stored before the checkpoint moves past
it; after a lost session, missed messages are read channel by channel. An interaction is verified
and ingested before it is answered, within the three seconds that Discord waits.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog
from nacl.signing import VerifyKey
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.platform import PlatformContext
from accord.relay.connector.store import KeyedLock, LockTurn
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import PERMANENT, read_body, skip_invalid
from accord.relay.platforms.discord import events
from accord.relay.platforms.discord.api import DiscordApi, DiscordResponse, PermissionLookup
from accord.relay.platforms.discord.events import InteractionKind
from accord.relay.platforms.discord.gateway import ConnectionEnd, Dispatch, GatewayConnection, dial
from accord.relay.platforms.discord.rules import permissions
from accord.relay.platforms.discord.rules.permissions import (
    ChatCache,
    DiscordChat,
    hidden_channels,
    is_snowflake,
    parse_time,
    read_chat,
)
from accord.relay.platforms.discord.rules.protocol import (
    ApiRoute,
    Checkpoint,
    GatewaySession,
    Intent,
    NextStep,
    identify_payload,
    resume_payload,
)
from accord.relay.platforms.settings import DEFAULT_LIMITS, DiscordSettings, PlatformLimits
from accord.relay.rules.connection import backoff
from accord.relay.rules.shards import Shard

_CALLBACK_PATH: Final = "/gateway"
_log = structlog.stdlib.get_logger(__name__)
_DIRECT: Final = 1
_PLAIN: Final = 0
_NOT_OURS: Final = frozenset({403, 404})
_CHANGED: Final = frozenset({"CHANNEL_CREATE", "CHANNEL_UPDATE", "THREAD_CREATE", "THREAD_UPDATE"})
_GONE: Final = frozenset({"CHANNEL_DELETE", "THREAD_DELETE"})
_OF_VISIBILITY: Final = ("GUILD_ROLE_", "GUILD_MEMBER_", "GUILD_UPDATE", "GUILD_DELETE", "THREAD_")
_OF_CHATS: Final = frozenset({"MESSAGE_CREATE", "INTERACTION_CREATE"})
_OF_GUILDS: Final = frozenset({"GUILD_CREATE"}) | _GONE
_ANEW_SECONDS: Final = 1.0
"""The documentation asks for one to five seconds before a new session."""
_PATIENT_DIALS: Final = 4
_IDENTIFY_SECONDS: Final = 5.0


async def ingest_and_defer(
    interaction: dict[str, Any],
    bot_id: str,
    context: PlatformContext,
    rest: DiscordApi,
    clock: Clock,
) -> None:
    """Ingest an interaction, and answer that a reply will follow."""
    kind = interaction.get("type")
    try:
        inbound = events.interaction_inbound(interaction, bot_id, _CALLBACK_PATH, clock.now())
        if kind == InteractionKind.AUTOCOMPLETE:
            answer = events.NO_CHOICES
        else:
            await context.ingest(inbound)
            answer = events.deferred_answer(kind)
    except RelayError as error:
        if error.code not in PERMANENT:
            raise
        _log.warning("an interaction cannot be stored", reason=error.what)
        return
    [found] = inbound.found
    token = found.value.get_secret_value()
    route = ApiRoute.of("POST", "/interactions/{}/{}/callback", inbound.event_id, token)
    try:
        answered = await rest.ask(route, answer, by_token=False)
    except RelayError as error:
        _log.warning("an interaction could not be deferred", reason=error.what)
        return
    if not answered.ok:
        _log.info("an interaction could not be deferred", reason=answered.reason)


@dataclass(frozen=True, slots=True)
class DispatchHandler:
    """Handles the dispatches of a session: those of one chat in order, see `DispatchLanes`."""

    bot_id: str
    rest: DiscordApi
    lookup: PermissionLookup
    clock: Clock
    context: PlatformContext
    checkpoint: Checkpoint
    settings: DiscordSettings
    chance: Callable[[], float]  # from 0 to 1; spreads retries and the pauses between connections
    shard: Shard = field(default_factory=Shard)
    places: ChatCache = field(default_factory=ChatCache)
    # The newest missed message that was read, by the dispatch for which it was.
    _read: dict[int, int] = field(default_factory=dict)

    async def take(self, happened: Dispatch) -> None:
        """Handle one dispatch; a malformed one is skipped."""
        name, data = happened.name, happened.data
        if name == "RESUMED":
            self.context.ready()
        elif not isinstance(data, dict):
            _log.warning("a malformed dispatch is skipped", kind=name)
        elif name == "MESSAGE_CREATE":
            await self._message(data)
        elif name == "READY":
            await self._ready(data, happened.seq)
        elif name == "GUILD_CREATE":
            await self._guild(data, happened.seq)
        elif name == "INTERACTION_CREATE":
            await ingest_and_defer(data, self.bot_id, self.context, self.rest, self.clock)
        else:
            self._change(name, data)

    def passed(self, dispatch: Dispatch) -> None:
        """Move the checkpoint: this dispatch and all before it are handled."""
        number = _message_id(dispatch.data) if dispatch.name == "MESSAGE_CREATE" else None
        if number is not None:
            self.checkpoint.passed(int(number))
        if (newest := self._read.pop(dispatch.seq, None)) is not None:
            self.checkpoint.passed(newest)
        if self.checkpoint.session is not None:
            self.checkpoint.session = replace(self.checkpoint.session, seq=dispatch.seq)

    async def _ready(self, data: Mapping[str, Any], seq: int) -> None:
        match data:
            case {
                "user": {"id": str(bot_id)},
                "session_id": str(name),
                "resume_gateway_url": str(url),
            }:
                pass
            case _:
                raise RelayError(Code.UNAVAILABLE, "Discord began a session that cannot be resumed")
        if bot_id != self.bot_id:
            raise RelayError(
                Code.UNAUTHORIZED,
                "the token is another bot's than the application's",
                where="application_id",
                mend=f"set it to {bot_id[:20]}, or give this application's token",
            )
        listed = data.get("guilds")
        named = listed if isinstance(listed, list) else []
        guilds = [each.get("id") for each in named if isinstance(each, dict)]
        known = {each for each in guilds if is_snowflake(each)}
        self._read.clear()
        self.checkpoint.began(GatewaySession(name, url, seq), known, self.clock.now())
        self.places.clear()
        self.lookup.forget()
        self.context.visibility_changed()
        self.context.ready()
        # Direct messages are the first shard's.
        directs = self.checkpoint.seen_in(None) if self.shard.number == 0 else []
        await self._catch_up_all(directs, None, 0, seq)

    async def _guild(self, data: Mapping[str, Any], seq: int) -> None:
        guild_id = data.get("id")
        if not is_snowflake(guild_id):
            return
        self.lookup.forget()
        self.context.visibility_changed(guild_id)
        joined = permissions.snowflake_before(parse_time(data.get("joined_at")) or 0.0)
        places = list(_places(data, ("channels", "threads"), guild_id))
        for place in places:
            self.places.put(place)
        unseen = hidden_channels(data, self.bot_id, self.clock.now())
        # A thread with missed messages may be archived again, and so not listed.
        listed = {place.id for place in places}
        others = [each for each in self.checkpoint.seen_in(guild_id) if each not in listed]
        visible = (each for each in places if each.id not in unseen)
        await self._catch_up_all([*visible, *others], guild_id, joined, seq)
        self.checkpoint.caught_up(guild_id)

    async def _catch_up_all(
        self, channels: Sequence[DiscordChat | str], guild_id: str | None, joined: int, seq: int
    ) -> None:
        """Read channels at the same time, each in its own order; those without a place by id."""
        turns = asyncio.Semaphore(self.settings.catch_up_channels)

        async def read(channel: DiscordChat | str) -> None:
            async with turns:
                if isinstance(channel, str):
                    channel = await self._place(channel, guild_id)
                newest = await self._catch_up(channel, joined)
                self._read[seq] = max(newest, self._read.get(seq, 0))

        try:
            async with asyncio.TaskGroup() as group:
                for channel in channels:
                    group.create_task(read(channel))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _message(self, data: Mapping[str, Any]) -> None:
        channel_id, guild_id = data.get("channel_id"), data.get("guild_id")
        if not is_snowflake(channel_id) or not (guild_id is None or is_snowflake(guild_id)):
            _log.warning("a message without a channel is skipped")
            return
        await self._hand_on(data, await self._place(channel_id, guild_id))

    async def _hand_on(self, message: Any, place: DiscordChat) -> None:
        inbound = events.message_inbound(message, place, self.bot_id)
        if inbound is not None:
            with skip_invalid(events.PLATFORM, inbound.event_id):
                await self.context.ingest(inbound)
        if (number := _message_id(message)) is not None:
            self.checkpoint.saw(place.id, number, place.guild_id)

    def _change(self, name: str, data: Mapping[str, Any]) -> None:
        guild_id = data.get("guild_id")
        if name in _GONE:
            self.places.drop(data.get("id"))
        elif name == "THREAD_LIST_SYNC" and is_snowflake(guild_id):
            for place in _places(data, ("threads",), guild_id):
                self.places.put(place)
        elif name in _CHANGED:
            if (changed := read_chat(data)) is not None:
                self.places.put(changed)
        elif not name.startswith(_OF_VISIBILITY):
            _log.debug("an unhandled dispatch is skipped", kind=name)
            return
        self.lookup.forget()
        around = data.get("id") if name in ("GUILD_UPDATE", "GUILD_DELETE") else guild_id
        self.context.visibility_changed(around if is_snowflake(around) else None)

    async def _place(self, channel_id: str, guild_id: str | None) -> DiscordChat:
        if guild_id is None:
            return DiscordChat(channel_id, _DIRECT)
        place = self.places.get(channel_id)
        if place is None:
            answer = await self._patiently("/channels/{}", channel_id)
            described = read_chat(answer.body, guild_id) if answer.ok else None
            # A channel that is gone or hidden is treated as a plain one.
            if answer.status in _NOT_OURS:
                self.checkpoint.forget(channel_id)
            place = described or DiscordChat(channel_id, _PLAIN, guild_id)
            self.places.put(place)
        return place

    async def _catch_up(self, place: DiscordChat, joined: int) -> int:
        """Read the messages of a channel that were missed; the id of the newest, or 0."""
        since = self.clock.now() - self.settings.backfill_hours * 3600
        oldest = max(joined, permissions.snowflake_before(since))
        after = self.checkpoint.after(place.id, oldest)
        if after is None or (place.guild_id is not None and place.latest <= after):
            return 0
        newest = 0
        while True:
            query = {"after": str(after), "limit": str(self.settings.catch_up_page)}
            answer = await self._patiently("/channels/{}/messages", place.id, query=query)
            if not answer.ok or not isinstance(answer.body, list):
                _log.info("a channel cannot be read", channel=place.id, reason=answer.reason)
                if answer.status in _NOT_OURS:
                    self.checkpoint.forget(place.id)
                return newest
            page = sorted(_numbered(answer.body, after), key=lambda each: each[0])
            for number, message in page:
                await self._hand_on(message, place)
                newest = after = number
            if len(answer.body) < self.settings.catch_up_page or not page:
                return newest

    async def _patiently(self, template: str, *parameters: str, **options: Any) -> DiscordResponse:
        """Retry until there is an answer, so that later messages do not overtake it."""
        failures, longest = 0, self.settings.catch_up_wait_seconds
        while True:
            try:
                answer = await self.rest.get(template, *parameters, patience=longest, **options)
            except RelayError as error:
                if error.code is Code.UNAUTHORIZED:
                    raise
                self.context.troubled(error)
                await asyncio.sleep(backoff(failures, self.chance()))
                failures += 1
            else:
                if failures:
                    self.context.ready()
                return answer


def _places(
    data: Mapping[str, Any], names: tuple[str, ...], guild_id: str
) -> Iterable[DiscordChat]:
    for name in names:
        listed = data.get(name)
        for each in listed if isinstance(listed, list) else ():
            place = read_chat(each, guild_id)
            if place is not None:
                yield place


def _numbered(messages: list[Any], after: int) -> Iterable[tuple[int, Any]]:
    for message in messages:
        number = message.get("id") if isinstance(message, dict) else None
        if is_snowflake(number) and int(number) > after:
            yield int(number), message


def _message_id(message: Any) -> str | None:
    number = message.get("id") if isinstance(message, dict) else None
    return number if is_snowflake(number) else None


@dataclass(eq=False, slots=True)
class _StartedDispatch:
    dispatch: Dispatch
    guild: str | None = None
    # Done when it is handled; an error ends the task group instead.
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class DispatchLanes:
    """Handles dispatches of different chats at the same time, and those of one chat in order.

    `passed` is called for each dispatch once it and all before it are handled, in their order. What
    concerns a guild as a whole waits for everything of this guild before it, and what comes after
    it in this guild waits for it. A new session waits for everything before it, and everything
    after it waits. An error of one ends the task group.
    """

    handler: DispatchHandler
    group: asyncio.TaskGroup
    passed: Callable[[Dispatch], None]
    _order: deque[_StartedDispatch] = field(default_factory=deque)
    _turns: KeyedLock = field(default_factory=KeyedLock)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    # What concerns a guild as a whole and is not done, by guild: the last of each.
    _whole: dict[str, _StartedDispatch] = field(default_factory=dict)
    _guilds_at_once: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._guilds_at_once = asyncio.Semaphore(self.handler.settings.catch_up_guilds)

    @property
    def is_busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._order)

    async def take(self, dispatch: Dispatch) -> None:
        """Begin to handle a dispatch; returns when the next may come."""
        most = self.handler.settings.dispatches
        await self._until_fewer_than(1 if dispatch.name == "READY" else most)
        started = _StartedDispatch(dispatch, _guild_of(dispatch))
        if started.guild is not None and dispatch.name in _OF_GUILDS:
            before = [each for each in self._order if each.guild == started.guild]
            self._whole[started.guild] = started
            self.group.create_task(self._after(started, before))
        elif (chat := _chat_of(dispatch)) is not None:
            whole = self._whole.get(started.guild or "")
            self.group.create_task(self._in_turn(started, self._turns.turn(chat), whole))
        else:
            self._order.append(started)
            await self._handle(started)
            return
        self._order.append(started)

    async def _until_fewer_than(self, limit: int) -> None:
        while len(self._order) >= limit:
            self._moved.clear()
            await self._moved.wait()

    async def _after(self, started: _StartedDispatch, before: Sequence[_StartedDispatch]) -> None:
        for each in before:
            await each.done.wait()
        if started.dispatch.name == "GUILD_CREATE":
            async with self._guilds_at_once:
                await self._handle(started)
        else:
            await self._handle(started)

    async def _in_turn(
        self, started: _StartedDispatch, turn: LockTurn, whole: _StartedDispatch | None
    ) -> None:
        async with turn:
            if whole is not None:
                await whole.done.wait()
            await self._handle(started)

    async def _handle(self, started: _StartedDispatch) -> None:
        await self.handler.take(started.dispatch)
        started.done.set()
        if started.guild is not None and self._whole.get(started.guild) is started:
            del self._whole[started.guild]
        while self._order and self._order[0].done.is_set():
            self.passed(self._order.popleft().dispatch)
        self._moved.set()


def _guild_of(dispatch: Dispatch) -> str | None:
    """The guild that a dispatch is about, or in whose chat it is; None for anything else."""
    if not isinstance(dispatch.data, dict):
        return None
    name = "id" if dispatch.name == "GUILD_CREATE" else "guild_id"
    guild_id = dispatch.data.get(name)
    return guild_id if is_snowflake(guild_id) else None


def _chat_of(dispatch: Dispatch) -> str | None:
    """The chat of a message or an interaction; None for anything else."""
    if dispatch.name not in _OF_CHATS or not isinstance(dispatch.data, dict):
        return None
    channel_id = dispatch.data.get("channel_id")
    return channel_id if is_snowflake(channel_id) else None


@dataclass(slots=True)
class GatewayListener:
    """Listens for one bot, as long as this process holds its lease."""

    settings: DiscordSettings
    token: SecretStr
    handler: DispatchHandler
    _is_dirty: bool = field(default=False, init=False)
    _kept_at: float = field(default=0.0, init=False)
    _failures: int = field(default=0, init=False)
    _at_once: int = field(default=1, init=False)

    async def run(self) -> None:
        """Listen until cancelled.

        Raises:
            RelayError: Discord refuses this bot, or the lease is lost.
            StoreError: A message could not be stored.
        """
        try:
            while True:
                await self._pause(await self._connect())
        finally:
            # If it cannot be stored, the older checkpoint serves as well.
            try:
                await self._keep()
            except AccordError as error:
                _log.info("the checkpoint could not be stored", reason=error.what)

    async def _connect(self) -> ConnectionEnd:
        """Run one connection; raises what `run` raises."""
        session = self.handler.checkpoint.session
        try:
            is_lasting = session is not None and self._is_gateway(session.url)
            # The host of a session may be gone while others work.
            if session is None or not is_lasting or self._failures >= _PATIENT_DIALS:
                url = await self._address()
                session = self.handler.checkpoint.session = None
                await self._until_allowed()
            else:
                url = session.url
            connection = await dial(url, self.settings, self.handler.chance)
        except RelayError as error:
            if error.code is Code.UNAUTHORIZED:
                raise
            return ConnectionEnd(NextStep.RESUME, error.what)
        token = self.token.get_secret_value()
        async with connection:
            if session:
                await connection.send(resume_payload(token, session))
            else:
                shard = self.handler.shard
                payload = identify_payload(token, self._intents, (shard.number, shard.count))
                await connection.send(payload)
            return await self._follow(connection)

    async def _follow(self, connection: GatewayConnection) -> ConnectionEnd:
        try:
            async with asyncio.TaskGroup() as group:
                lanes = DispatchLanes(self.handler, group, self._passed)
                return await self._follow_in(connection, lanes)
        except BaseExceptionGroup as failed:
            # One that fails ends the connection: what is behind it comes again.
            raise failed.exceptions[0] from None

    async def _follow_in(
        self, connection: GatewayConnection, lanes: DispatchLanes
    ) -> ConnectionEnd:
        is_greeted, often = False, self.settings.checkpoint_seconds
        while True:
            pause = often if self._is_dirty or lanes.is_busy else None
            try:
                async with asyncio.timeout(pause if is_greeted else self.settings.greeting_seconds):
                    happened = await connection.next()
            except TimeoutError:
                if not is_greeted:
                    return ConnectionEnd(NextStep.IDENTIFY, "the gateway does not begin a session")
                await self._keep()
                continue
            if isinstance(happened, ConnectionEnd):
                return happened
            await lanes.take(happened)
            if happened.name in ("READY", "RESUMED"):
                is_greeted, self._failures = True, 0
            is_due = self.handler.clock.monotonic() - self._kept_at >= often
            # A new session must be stored at once, or its events could be missed.
            if is_due or happened.name == "READY":
                await self._keep()

    def _passed(self, dispatch: Dispatch) -> None:
        self.handler.passed(dispatch)
        self._is_dirty = self._is_dirty or self.handler.checkpoint.session is not None

    async def _keep(self) -> None:
        if self._is_dirty:
            self._is_dirty = False
            self._kept_at = self.handler.clock.monotonic()
            await self.handler.context.remember(self.handler.checkpoint.write())

    async def _pause(self, ended: ConnectionEnd) -> None:
        _log.info("a connection to discord ended", reason=ended.reason, next=ended.next.value)
        if ended.next is NextStep.IDENTIFY:
            self.handler.checkpoint.session = None
        failures, self._failures = self._failures, self._failures + 1
        if failures:
            self.handler.context.troubled(RelayError(Code.UNAVAILABLE, ended.reason))
            longest = self.handler.rest.limits.pause_seconds
            pause = backoff(failures, self.handler.chance(), longest=longest)
        elif ended.next is NextStep.IDENTIFY:
            pause = _ANEW_SECONDS * (1 + 4 * self.handler.chance())
        else:
            pause = 0.0 if ended.wished else self.handler.chance()
        await asyncio.sleep(pause)

    async def _until_allowed(self) -> None:
        """Wait until a session may begin: one of a bucket of shards within five seconds."""
        shard = self.handler.shard
        if shard.count == 1:
            return
        turn = f"identify {shard.number % self._at_once}"
        while not await self.handler.context.take_turn(turn, _IDENTIFY_SECONDS):  # noqa: ASYNC110
            await asyncio.sleep(_IDENTIFY_SECONDS / 5)

    async def _address(self) -> str:
        answer = await self.handler.rest.get("/gateway/bot")
        match answer.body:
            case {"url": str(url)} if answer.ok and self._is_gateway(url):
                pass
            case _:
                raise RelayError(Code.UNAVAILABLE, "Discord does not say where its gateway is")
        match answer.body.get("session_start_limit"):
            case {"max_concurrency": int(at_once)} if at_once > 0:
                self._at_once = at_once
        match answer.body.get("session_start_limit"):
            case {"remaining": 0, "reset_after": int(millis)}:
                what = f"Discord lets this bot begin no session for {millis // 1000} seconds"
                raise RelayError(Code.RATE_LIMITED, what)
        return url

    def _is_gateway(self, url: Any) -> bool:
        schemes = ("wss://", "ws://") if self.settings.api_url.startswith("http:") else ("wss://",)
        return isinstance(url, str) and url.startswith(schemes)

    @property
    def _intents(self) -> int:
        """The least that is needed to receive messages and to know their channels."""
        wanted = Intent.GUILDS | Intent.GUILD_MESSAGES | Intent.DIRECT_MESSAGES
        if self.settings.message_content:
            wanted |= Intent.MESSAGE_CONTENT
        if self.settings.member_events:
            wanted |= Intent.GUILD_MEMBERS
        return wanted


class InteractionEndpoint:
    """Answers Discord's requests, which `public_key` (hexadecimal) verifies."""

    def __init__(
        self, settings: DiscordSettings, clock: Clock, limits: PlatformLimits = DEFAULT_LIMITS
    ) -> None:
        application_id = settings.application_id
        self.context: PlatformContext | None = None
        self.counts: Counter[str] = Counter()
        self.path = f"/relay/platforms/discord/{application_id}/interactions"
        self._application_id = application_id
        self._seconds = settings.reply_seconds
        self._limits = limits.of(settings)
        self._key = VerifyKey(bytes.fromhex(settings.public_key))
        self._clock = clock

    @property
    def route(self) -> Route:
        """The route, to be mounted at the root."""
        return Route(self.path, self._endpoint, methods=["POST"])

    async def _endpoint(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._answer(request)
        except RelayError as error:
            return self._refuse(error)
        except TimeoutError:
            return self._refuse(RelayError(Code.UNAVAILABLE, "the event was not stored in time"))
        except AccordError as error:
            _log.error("an interaction could not be stored", reason=error.what)
            return self._refuse(RelayError(Code.UNAVAILABLE, "the event was not stored"))
        self.counts["answered"] += 1
        return JSONResponse(answer)

    async def _answer(self, request: Request) -> dict[str, Any]:
        body = await read_body(request, self._limits)
        signature = request.headers.get("x-signature-ed25519", "")
        timestamp = request.headers.get("x-signature-timestamp", "")
        now, tolerance = self._clock.now(), self._limits.tolerance_seconds
        if not events.is_signed(self._key, signature, timestamp, body, now, tolerance):
            raise RelayError(Code.UNAUTHORIZED, "the request is not signed, or too old")
        interaction = events.read_interaction(body)
        kind = interaction["type"]
        if kind == InteractionKind.PING:
            return events.PONG
        if kind == InteractionKind.AUTOCOMPLETE:
            return events.NO_CHOICES
        if self.context is None:
            raise RelayError(Code.UNAVAILABLE, "the connector is starting")
        try:
            await self.context.ingest(
                events.interaction_inbound(
                    interaction, self._application_id, self.path, self._clock.now()
                )
            )
        except RelayError as error:
            if error.code not in PERMANENT:
                raise
            _log.warning("an interaction cannot be stored", kind=kind, reason=error.what)
            return events.NOT_TAKEN
        return events.deferred_answer(kind)

    def _refuse(self, error: RelayError) -> Response:
        self.counts[f"refused_{error.code.value}"] += 1
        _log.info("an interaction was refused", path=self.path, code=error.code.value)
        answer = {"error": error.code.value, "message": str(error)}
        return JSONResponse(answer, error.code.status)
