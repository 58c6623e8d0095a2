"""Listening to Discord: from a session's beginning to its end, over and over.

Owns the loop around connections: resume where that is possible, begin anew where it is not, and how
long to wait in between. Short trouble stays inside; what only a person can mend is raised.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
from pydantic import SecretStr

from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord.gateway import Connection, Ended, dial
from accord.relay.platforms.discord.intake import Intake
from accord.relay.platforms.discord.rest import Rest
from accord.relay.platforms.discord.session import Intent, Next, Session, identify, resume
from accord.relay.platforms.settings.discord import DiscordSettings
from accord.relay.wire.closing import backoff

_GREETING_SECONDS: Final = 30.0
_KEEPING_SECONDS: Final = 1.0
_ANEW_SECONDS: Final = 1.0
"""The documentation asks for one to five seconds before a new session."""
_PATIENT_DIALS: Final = 4
_LONGEST_PAUSE: Final = 30.0
_log = structlog.stdlib.get_logger(__name__)


class Listening:
    """Listens for one bot, under one ownership.

    Args:
        settings: Which bot, and what it asks for.
        token: The bot's token.
        rest: The API.
        clock: Where the time comes from.
        context: The connector.
        intake: What becomes of what happens.
        chance: From 0 to 1, for pauses that must not be everybody's.
    """

    def __init__(
        self,
        settings: DiscordSettings,
        token: SecretStr,
        rest: Rest,
        clock: Clock,
        context: PlatformContext,
        intake: Intake,
        chance: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._token = token
        self._rest = rest
        self._clock = clock
        self._context = context
        self._intake = intake
        self._memory = intake.memory
        self._chance = chance
        self._is_dirty = False
        self._kept_at = 0.0
        self._failures = 0

    async def run(self) -> None:
        """Listen until cancelled.

        Raises:
            RelayError: Discord refuses this bot, or the ownership is lost.
            StoreError: What came could not be stored.
        """
        try:
            while True:
                await self._pause(await self._connect())
        finally:
            # Where it cannot be kept, what is older serves as well.
            try:
                await self._keep()
            except AccordError as error:
                _log.info("where to go on could not be kept", reason=error.what)

    async def _connect(self) -> Ended:
        """One connection, from its beginning to its end.

        Raises:
            RelayError: Discord refuses this bot, or the ownership is lost.
            StoreError: What came could not be stored.
        """
        session = self._memory.session
        try:
            is_lasting = session is not None and self._is_gateway(session.url)
            # The host of a session may be gone while the rest of Discord is there.
            if session is None or not is_lasting or self._failures >= _PATIENT_DIALS:
                url = await self._address()
                session = self._memory.session = None
            else:
                url = session.url
            connection = await dial(url, self._chance)
        except RelayError as error:
            if error.code is Code.UNAUTHORIZED:
                raise
            return Ended(Next.RESUME, error.what)
        token = self._token.get_secret_value()
        async with connection:
            if session:
                await connection.send(resume(token, session))
            else:
                await connection.send(identify(token, self._intents, self._settings.shard))
            return await self._follow(connection)

    async def _follow(self, connection: Connection) -> Ended:
        is_greeted = False
        while True:
            pause = _KEEPING_SECONDS if self._is_dirty else None
            try:
                async with asyncio.timeout(pause if is_greeted else _GREETING_SECONDS):
                    happened = await connection.next()
            except TimeoutError:
                if not is_greeted:
                    return Ended(Next.IDENTIFY, "the gateway does not begin a session")
                await self._keep()
                continue
            if isinstance(happened, Ended):
                return happened
            await self._intake.take(happened)
            if happened.name in ("READY", "RESUMED"):
                is_greeted, self._failures = True, 0
            session = self._memory.session
            if session is not None:
                self._memory.session = Session(session.id, session.url, happened.seq)
                self._is_dirty = True
            is_due = self._clock.monotonic() - self._kept_at >= _KEEPING_SECONDS
            # A session must be known before anything is lost with it.
            if is_due or happened.name == "READY":
                await self._keep()

    async def _keep(self) -> None:
        if self._is_dirty:
            self._is_dirty = False
            self._kept_at = self._clock.monotonic()
            await self._context.remember(self._memory.write())

    async def _pause(self, ended: Ended) -> None:
        _log.info("a connection to discord ended", reason=ended.reason, next=ended.next.value)
        if ended.next is Next.IDENTIFY:
            self._memory.session = None
        failures, self._failures = self._failures, self._failures + 1
        if failures:
            self._context.troubled(RelayError(Code.UNAVAILABLE, ended.reason))
            pause = backoff(failures, self._chance(), longest=_LONGEST_PAUSE)
        elif ended.next is Next.IDENTIFY:
            pause = _ANEW_SECONDS * (1 + 4 * self._chance())
        else:
            pause = 0.0 if ended.wished else self._chance()
        await asyncio.sleep(pause)

    async def _address(self) -> str:
        answer = await self._rest.get("/gateway/bot")
        match answer.body:
            case {"url": str(url)} if answer.ok and self._is_gateway(url):
                pass
            case _:
                raise RelayError(Code.UNAVAILABLE, "Discord does not say where its gateway is")
        match answer.body.get("session_start_limit"):
            case {"remaining": 0, "reset_after": int(millis)}:
                what = f"Discord lets this bot begin no session for {millis // 1000} seconds"
                raise RelayError(Code.RATE_LIMITED, what)
        return url

    def _is_gateway(self, url: Any) -> bool:
        schemes = ("wss://", "ws://") if self._settings.api_url.startswith("http:") else ("wss://",)
        return isinstance(url, str) and url.startswith(schemes)

    @property
    def _intents(self) -> int:
        """What is needed to hear people and to know their channels, and nothing else."""
        wanted = Intent.GUILDS | Intent.GUILD_MESSAGES | Intent.DIRECT_MESSAGES
        if self._settings.message_content:
            wanted |= Intent.MESSAGE_CONTENT
        if self._settings.member_events:
            wanted |= Intent.GUILD_MEMBERS
        return wanted
