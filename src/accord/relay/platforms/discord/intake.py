"""What becomes of what happens on Discord.

Owns the order: each thing is dealt with before the next, and a message is on disk before the place
in the session moves on. After a lost session it reads what was missed, channel by channel, before
anything newer of that guild. It decides nothing about who receives a message.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord import normalise, promising, snowflakes
from accord.relay.platforms.discord.gateway import Dispatch
from accord.relay.platforms.discord.memory import Memory
from accord.relay.platforms.discord.permissions import hidden, moment
from accord.relay.platforms.discord.places import Place, Places, read_place
from accord.relay.platforms.discord.rest import Answer, Rest
from accord.relay.platforms.discord.session import Session
from accord.relay.platforms.discord.sight import Sight
from accord.relay.platforms.discord.snowflakes import is_snowflake
from accord.relay.wire.closing import backoff

_PAGE: Final = 100
_PATIENCE: Final = 60.0
_DIRECT: Final = 1
_PLAIN: Final = 0
_NOT_OURS: Final = frozenset({403, 404})
_CHANGED: Final = frozenset({"CHANNEL_CREATE", "CHANNEL_UPDATE", "THREAD_CREATE", "THREAD_UPDATE"})
_GONE: Final = frozenset({"CHANNEL_DELETE", "THREAD_DELETE"})
_OF_VISIBILITY: Final = ("GUILD_ROLE_", "GUILD_MEMBER_", "GUILD_UPDATE", "GUILD_DELETE", "THREAD_")
# What can never be kept is passed over, or it would come again for ever.
_NEVER: Final = frozenset({Code.BAD_REQUEST, Code.TOO_LARGE})
_log = structlog.stdlib.get_logger(__name__)


class Intake:
    """Deals with what a session tells of, one thing after the other.

    Args:
        bot_id: The bot.
        rest: The API.
        sight: What is believed about permissions.
        clock: Where the time comes from.
        context: The connector.
        memory: Where to go on; this moves it.
        oldest_seconds: How old a message may be that was missed.
        chance: From 0 to 1, for pauses that must not be everybody's.
    """

    def __init__(
        self,
        bot_id: str,
        rest: Rest,
        sight: Sight,
        clock: Clock,
        context: PlatformContext,
        memory: Memory,
        oldest_seconds: float,
        chance: Callable[[], float],
    ) -> None:
        self.memory = memory
        self._bot_id = bot_id
        self._rest = rest
        self._sight = sight
        self._clock = clock
        self._context = context
        self._oldest_seconds = oldest_seconds
        self._chance = chance
        self._places = Places()

    async def take(self, happened: Dispatch) -> None:
        """Deal with one thing; what cannot be read is passed over.

        Raises:
            RelayError: The ownership is lost, or this is another bot than it should be.
            StoreError: A message could not be stored.
        """
        name, data = happened.name, happened.data
        if name == "RESUMED":
            self._context.ready()
        elif not isinstance(data, dict):
            _log.warning("discord told something that cannot be read", kind=name)
        elif name == "MESSAGE_CREATE":
            await self._message(data)
        elif name == "READY":
            await self._ready(data, happened.seq)
        elif name == "GUILD_CREATE":
            await self._guild(data)
        elif name == "INTERACTION_CREATE":
            await promising.take(data, self._bot_id, self._context, self._rest, self._clock)
        else:
            self._change(name, data)

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
        if bot_id != self._bot_id:
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
        self.memory.began(Session(name, url, seq), known, self._clock.now())
        self._places.clear()
        self._sight.forget()
        self._context.visibility_changed()
        self._context.ready()
        for channel_id in self.memory.seen_in(None):
            await self._catch_up(Place(channel_id, _DIRECT), 0)

    async def _guild(self, data: Mapping[str, Any]) -> None:
        guild_id = data.get("id")
        if not is_snowflake(guild_id):
            return
        self._sight.forget()
        self._context.visibility_changed(guild_id)
        joined = snowflakes.before(moment(data.get("joined_at")) or 0.0)
        places = list(_places(data, ("channels", "threads"), guild_id))
        for place in places:
            self._places.put(place)
        unseen = hidden(data, self._bot_id, self._clock.now())
        for place in places:
            if place.id not in unseen:
                await self._catch_up(place, joined)
        # A thread may have fallen asleep again since somebody wrote in it.
        listed = {place.id for place in places}
        for channel_id in self.memory.seen_in(guild_id):
            if channel_id not in listed:
                await self._catch_up(await self._place(channel_id, guild_id), joined)
        self.memory.caught_up(guild_id)

    async def _message(self, data: Mapping[str, Any]) -> None:
        channel_id, guild_id = data.get("channel_id"), data.get("guild_id")
        if not is_snowflake(channel_id) or not (guild_id is None or is_snowflake(guild_id)):
            _log.warning("discord told of a message without a place")
            return
        await self._hand_on(data, await self._place(channel_id, guild_id))

    async def _hand_on(self, message: Any, place: Place) -> None:
        inbound = normalise.inbound(message, place, self._bot_id)
        if inbound is not None:
            try:
                await self._context.ingest(inbound)
            except RelayError as error:
                if error.code not in _NEVER:
                    raise
                _log.warning(
                    "a message cannot be kept", message=inbound.event_id, reason=error.what
                )
        if isinstance(message, dict) and is_snowflake(message.get("id")):
            self.memory.saw(place.id, message["id"], place.guild_id)

    def _change(self, name: str, data: Mapping[str, Any]) -> None:
        guild_id = data.get("guild_id")
        if name in _GONE:
            self._places.drop(data.get("id"))
        elif name == "THREAD_LIST_SYNC" and is_snowflake(guild_id):
            for place in _places(data, ("threads",), guild_id):
                self._places.put(place)
        elif name in _CHANGED:
            if (changed := read_place(data)) is not None:
                self._places.put(changed)
        elif not name.startswith(_OF_VISIBILITY):
            _log.debug("discord told of something that is not handed on", kind=name)
            return
        self._sight.forget()
        around = data.get("id") if name in ("GUILD_UPDATE", "GUILD_DELETE") else guild_id
        self._context.visibility_changed(around if is_snowflake(around) else None)

    async def _place(self, channel_id: str, guild_id: str | None) -> Place:
        if guild_id is None:
            return Place(channel_id, _DIRECT)
        place = self._places.get(channel_id)
        if place is None:
            answer = await self._patiently("/channels/{}", channel_id)
            described = read_place(answer.body, guild_id) if answer.ok else None
            # One that is gone or hidden from the bot is a channel of which nothing is known.
            if answer.status in _NOT_OURS:
                self.memory.forget(channel_id)
            place = described or Place(channel_id, _PLAIN, guild_id)
            self._places.put(place)
        return place

    async def _catch_up(self, place: Place, joined: int) -> None:
        """Read what was written in a place while nobody listened."""
        oldest = max(joined, snowflakes.before(self._clock.now() - self._oldest_seconds))
        after = self.memory.after(place.id, oldest)
        if after is None or (place.guild_id is not None and place.latest <= after):
            return
        while True:
            query = {"after": str(after), "limit": str(_PAGE)}
            answer = await self._patiently("/channels/{}/messages", place.id, query=query)
            if not answer.ok or not isinstance(answer.body, list):
                _log.info("a channel cannot be read", channel=place.id, reason=answer.reason)
                if answer.status in _NOT_OURS:
                    self.memory.forget(place.id)
                return
            page = sorted(_numbered(answer.body, after), key=lambda each: each[0])
            for number, message in page:
                await self._hand_on(message, place)
                after = number
            if len(answer.body) < _PAGE or not page:
                return

    async def _patiently(self, template: str, *parameters: str, **options: Any) -> Answer:
        """Ask until there is an answer: what comes after must not overtake this."""
        failures = 0
        while True:
            try:
                answer = await self._rest.get(template, *parameters, patience=_PATIENCE, **options)
            except RelayError as error:
                if error.code is Code.UNAUTHORIZED:
                    raise
                self._context.troubled(error)
                await asyncio.sleep(backoff(failures, self._chance()))
                failures += 1
            else:
                if failures:
                    self._context.ready()
                return answer


def _places(data: Mapping[str, Any], names: tuple[str, ...], guild_id: str) -> Iterable[Place]:
    for name in names:
        listed = data.get(name)
        for each in listed if isinstance(listed, list) else ():
            place = read_place(each, guild_id)
            if place is not None:
                yield place


def _numbered(messages: list[Any], after: int) -> Iterable[tuple[int, Any]]:
    for message in messages:
        number = message.get("id") if isinstance(message, dict) else None
        if is_snowflake(number) and int(number) > after:
            yield int(number), message
