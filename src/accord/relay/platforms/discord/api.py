"""Discord's API: calls within its rate limits, and permissions looked up by them.

The bot's token is in a header and an interaction's token in a path; no error and no log shows them.
Guilds and channels are cached for some seconds, members are fetched each time.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import orjson
import structlog
from cachetools import LRUCache
from pydantic import SecretStr

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import (
    HttpService,
    RateLimitedError,
    RewritingTransport,
    ServiceResponse,
    UnansweredError,
    open_client,
    status_outcome,
)
from accord.relay.platforms.discord.rules import permissions
from accord.relay.platforms.discord.rules.permissions import (
    DIRECT_CHATS,
    PRIVATE_THREAD,
    Permission,
    is_snowflake,
)
from accord.relay.platforms.discord.rules.protocol import ApiRoute, RateLimits, retry_after
from accord.relay.platforms.settings import DiscordSettings, PlatformLimits
from accord.relay.rules.frames import Outcome

_TURNS: Final = 20
_TARGET: Final = "accord.target"
_USER_AGENT: Final = "DiscordBot (https://discord.com/developers, 10) accord"
_log = structlog.stdlib.get_logger(__name__)
T = TypeVar("T")
_MOST_FACTS: Final = 5_000


@dataclass(frozen=True, slots=True)
class DiscordResponse:
    """What the API answered; `body` is None where it is no JSON."""

    status: int
    body: Any = None

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def code(self) -> int:
        """Discord's own error code; 0 where it gave none."""
        code = self.body.get("code") if isinstance(self.body, dict) else 0
        return code if isinstance(code, int) else 0

    @property
    def reason(self) -> str:
        """Why it was refused, as a sentence."""
        message = self.body.get("message") if isinstance(self.body, dict) else None
        if not isinstance(message, str) or not message:
            message = f"it answered {self.status}"
        return f"Discord refused it: {message[:200]}"


class DiscordApi:
    """Discord's API with one bot's token."""

    def __init__(
        self,
        service: HttpService,
        settings: DiscordSettings,
        token: SecretStr,
        clock: Clock,
    ) -> None:
        self._service = service
        self.limits = service.limits
        self._url = settings.api_url.rstrip("/")
        self._repeat_seconds = settings.repeat_seconds
        self._token = token
        self._clock = clock
        self._limits = RateLimits()
        # The connector, once the platform is bound to it.
        self.context: PlatformContext | None = None

    def pause(self, what: str, seconds: float) -> None:
        """Send nothing of a kind for some time, as another connector was told."""
        self._limits.note_pause(what, seconds, self._clock.monotonic())

    async def get(self, template: str, *parameters: str, **options: Any) -> DiscordResponse:
        """Read something; see `ask`."""
        return await self.ask(ApiRoute.of("GET", template, *parameters), repeats=2, **options)

    async def ask(
        self,
        route: ApiRoute,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        patience: float | None = None,
        repeats: int = 0,
        by_token: bool = True,
    ) -> DiscordResponse:
        """Send a request as soon as the rate limits allow.

        Args:
            body: Sent as JSON.
            patience: How many seconds to wait for the rate limits at most; `rate_wait_seconds`
                where it is not given.
            repeats: How often to send it again when Discord fails; only for requests that are
                idempotent.
            by_token: Whether to send the bot's token; the path of a webhook has one already.

        Raises:
            UnansweredError: Whether it was done is unknown.
            RelayError: Discord fails (UNAVAILABLE), the wait would be too long (RATE_LIMITED), or
                the token is refused (UNAUTHORIZED).
        """
        longest = self.limits.rate_wait_seconds if patience is None else patience
        unanswered: UnansweredError | None = None
        while True:
            try:
                answer = await self._send_in_turn(route, body, query, longest, by_token)
                if unanswered is None or answer.ok:
                    return answer
            except RelayError as error:
                if isinstance(error, UnansweredError):
                    unanswered = error
                if error.code is Code.UNAVAILABLE and repeats:
                    repeats -= 1
                    await asyncio.sleep(self._repeat_seconds)
                    continue
                if unanswered is None:
                    raise
            # What Discord says of a repetition says nothing of the request before it.
            raise unanswered

    async def _send_in_turn(
        self,
        route: ApiRoute,
        body: Any,
        query: Mapping[str, str] | None,
        patience: float,
        by_token: bool,
    ) -> DiscordResponse:
        pause = 0.0
        for _ in range(_TURNS):
            pause = self._limits.wait(route, self._clock.monotonic())
            if pause > patience:
                break
            if pause:
                patience -= pause
                await asyncio.sleep(pause)
                continue
            reply = await self._send(route, body, query, by_token)
            now = self._clock.monotonic()
            self._limits.note_headers(route, reply.headers, now)
            if reply.status == 429:
                self._note_refusal(route, reply, now)
                continue
            if reply.status == 401 and by_token:
                raise RelayError(
                    Code.UNAUTHORIZED,
                    "Discord refuses the bot's token",
                    mend="make a new one in the developer portal, under Bot",
                )
            if reply.status >= 500:
                what = f"Discord fails: it answered {reply.status}"
                if status_outcome(reply.status) is Outcome.UNKNOWN:
                    raise _unanswered(route, what)
                raise RelayError(Code.UNAVAILABLE, what)
            return DiscordResponse(reply.status, reply.json)
        raise RateLimitedError("Discord is asked too often", pause)

    def _note_refusal(self, route: ApiRoute, reply: ServiceResponse, now: float) -> None:
        body = reply.json if isinstance(reply.json, dict) else {}
        seconds = retry_after(body.get("retry_after", _float(reply.headers.get("retry-after"))))
        scope = reply.headers.get("x-ratelimit-scope")
        everyone = body.get("global") is True or scope == "global"
        self._limits.note_refusal(route, seconds, now, everyone=everyone)
        told = self._limits.pause_name(route, everyone=everyone)
        if self.context is not None and told is not None:
            self.context.paused(told, seconds)
        _log.info("rate limited", route=route.template, seconds=seconds, everyone=everyone)

    async def _send(
        self, route: ApiRoute, body: Any, query: Mapping[str, str] | None, by_token: bool
    ) -> ServiceResponse:
        headers = {"user-agent": _USER_AGENT}
        if by_token:
            headers["authorization"] = f"Bot {self._token.get_secret_value()}"
        content = None
        if body is not None:
            try:
                content = orjson.dumps(body)
            except orjson.JSONEncodeError:
                raise RelayError(Code.BAD_REQUEST, "this cannot be written as JSON") from None
            headers["content-type"] = "application/json"
        try:
            reply = await self._service.send(
                route.method,
                self._url + route.shown,
                params=query,
                content=content,
                headers=headers,
                extensions={_TARGET: self._url + route.path},
            )
        except TimeoutError as error:
            raise _unanswered(route, str(error)) from None
        if reply.is_too_long:
            raise _unanswered(route, "Discord answered with more than can be read")
        return reply


@asynccontextmanager
async def open_api(
    settings: DiscordSettings, token: SecretStr, clock: Clock, limits: PlatformLimits
) -> AsyncIterator[DiscordApi]:
    """Open the API; nothing is sent yet."""
    async with open_client(limits, transport=RewritingTransport(_real_url)) as http:
        yield DiscordApi(HttpService("Discord", http, limits), settings, token, clock)


def _real_url(request: httpx.Request) -> httpx.URL:
    return httpx.URL(request.extensions[_TARGET]).copy_with(query=request.url.query or None)


def _unanswered(route: ApiRoute, what: str) -> RelayError:
    """The error for a request without an answer; a read that was not answered changed nothing."""
    kind = RelayError if route.method == "GET" else UnansweredError
    return kind(Code.UNAVAILABLE, what)


def _float(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


class _UnknownError(Exception):
    """The answer says nothing about it."""


class _AbsentError(Exception):
    """The API answered 404."""


class PermissionLookup:
    """Looks up permissions."""

    def __init__(self, rest: DiscordApi, settings: DiscordSettings, clock: Clock) -> None:
        self._rest = rest
        self._settings = settings
        self._clock = clock
        self._facts: LRUCache[tuple[str, str], tuple[float, Any]] = LRUCache(_MOST_FACTS)
        self._changes = 0

    def forget(self) -> None:
        """Clear the cache."""
        self._facts.clear()
        self._changes += 1

    async def allowed(
        self, user_id: str, scope_id: str | None, channel_id: str, wanted: Permission
    ) -> bool | None:
        """Whether a user has a permission in a channel; None if that is unknown."""
        if not is_snowflake(user_id) or not is_snowflake(channel_id):
            return False
        try:
            return await self._allowed(user_id, scope_id, channel_id, wanted)
        except _AbsentError:
            return False
        except (_UnknownError, RelayError):
            return None

    async def _allowed(
        self, user_id: str, scope_id: str | None, channel_id: str, wanted: Permission
    ) -> bool:
        described = await self._fact("/channels/{}", channel_id)
        match described:
            case {"type": int(kind)} if kind in DIRECT_CHATS:
                is_theirs = scope_id is None and _takes_part(described, user_id)
                return is_theirs and wanted is Permission.VIEW_CHANNEL
        channel = _known(permissions.read_channel(described))
        if channel.guild_id != scope_id:
            return False
        guild = _known(permissions.read_guild(await self._fact("/guilds/{}", channel.guild_id)))
        found = await self._ask("/guilds/{}/members/{}", guild.id, user_id)
        member = _known(permissions.read_member(user_id, found))
        now = self._clock.now()
        if not channel.is_thread:
            return bool(permissions.channel_permissions(member, guild, channel, now) & wanted)
        parent_id = channel.parent_id
        if not is_snowflake(parent_id):
            raise _UnknownError
        parent = _known(permissions.read_channel(await self._fact("/channels/{}", parent_id)))
        joined = channel.kind == PRIVATE_THREAD and await self._joined(channel_id, user_id)
        permitted = permissions.thread_permissions(
            member, guild, channel, parent, joined=joined, now=now
        )
        return bool(permitted & wanted)

    async def _joined(self, thread_id: str, user_id: str) -> bool:
        try:
            await self._ask("/channels/{}/thread-members/{}", thread_id, user_id)
        except _AbsentError:
            return False
        return True

    async def _fact(self, template: str, subject: str) -> Any:
        """An object of the API, at most some seconds old."""
        key, now = (template, subject), self._clock.monotonic()
        known = self._facts.get(key)
        if known is not None and now < known[0]:
            return known[1]
        changes = self._changes
        value = await self._ask(template, subject)
        if changes != self._changes:
            return value  # it may be older than a change that came meanwhile
        self._facts[key] = now + self._settings.fact_seconds, value
        return value

    async def _ask(self, template: str, *parameters: str) -> Any:
        patience = self._settings.lookup_wait_seconds
        answer = await self._rest.get(template, *parameters, patience=patience)
        if answer.status == 404:
            raise _AbsentError
        if not answer.ok:
            raise _UnknownError
        return answer.body


def _known(value: T | None) -> T:
    if value is None:
        raise _UnknownError
    return value


def _takes_part(described: dict[str, Any], user_id: str) -> bool:
    people = described.get("recipients")
    return isinstance(people, list) and any(
        isinstance(each, dict) and each.get("id") == user_id for each in people
    )
