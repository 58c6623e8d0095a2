"""The client API of a Matrix homeserver, and the state of the bot's rooms, cached.

Nothing that is raised or logged holds the access token. The scope of a room is the space around it
if both say so: the room names the space as its canonical parent, and the space lists the room.
Every other room is a scope of its own: nobody becomes a tenant by being on the same server.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx
import orjson
import structlog
from cachetools import LRUCache
from pydantic import SecretStr

from accord.kernel.clock import Clock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import (
    HttpService,
    Pauses,
    RateLimitedError,
    ServiceResponse,
    UnansweredError,
    open_client,
    retry_limited,
    status_outcome,
    timeouts,
)
from accord.relay.platforms.matrix.rules import CHILD, ENCRYPTION, MEMBER, Room, is_room
from accord.relay.platforms.settings import DEFAULT_LIMITS, MatrixSettings, PlatformLimits
from accord.relay.rules.frames import Outcome
from accord.relay.rules.members import Payload

CLIENT: Final = "/_matrix/client/v3"

_NAME: Final = "the Matrix homeserver"
# The kind of request whose rate limits the bot's connectors tell each other.
_SENDING: Final = "send"
_REVOKED: Final = ("M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED")
_CODES: Final[Mapping[int, Code]] = {
    400: Code.BAD_REQUEST,
    401: Code.UNAUTHORIZED,
    403: Code.FORBIDDEN,
    404: Code.NOT_FOUND,
    409: Code.CONFLICT,
    413: Code.TOO_LARGE,
}
_MOST_PARENTS: Final = 8
_MOST_SENDERS: Final = 10_000
_IN_CLEAR_SECONDS: Final = 300.0
_HIDDEN: Final = (Code.FORBIDDEN, Code.NOT_FOUND)
_log = structlog.stdlib.get_logger(__name__)


def room_path(room: str, *steps: str) -> str:
    """The path of something in a room; raises RelayError for what is no room."""
    if not is_room(room) or any(step in ("", ".", "..") for step in steps):
        raise RelayError(Code.NOT_FOUND, "there is no such room")
    return "/".join([f"{CLIENT}/rooms", *(quote(each, safe="") for each in (room, *steps))])


class Homeserver:
    """A bot's account on a homeserver."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        settings: MatrixSettings,
        token: SecretStr,
        limits: PlatformLimits,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.pauses = Pauses(clock)
        # A sync may take long: only the timeouts of each request apply.
        self._service = HttpService(_NAME, client, limits, has_deadline=False)
        self._headers = {"authorization": f"Bearer {token.get_secret_value()}"}

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        patience: float | None = None,
    ) -> Any:
        """Send a request, again after a rate limit; the JSON of the answer.

        Args:
            path: Below the homeserver's address, quoted.
            body: Sent as JSON.
            seconds: How long the homeserver may be silent, if not `silent_seconds`.
            patience: The longest rate limit, in seconds, that is waited for, if not
                `rate_wait_seconds`.

        Raises:
            UnansweredError: It was sent, and the outcome is unknown.
            RelayError: The homeserver cannot be reached or fails (UNAVAILABLE), refuses the token
                (UNAUTHORIZED), or refuses the request.
        """
        usual = self.limits.silent_seconds
        options: dict[str, Any] = {
            "content": None if body is None else orjson.dumps(body),
            "params": query,
            "headers": self._headers,
            "timeout": timeouts(self.limits, 0.0 if seconds is None else seconds - usual),
        }
        try:
            reply = await retry_limited(
                lambda: self._service.send(method, path, **options),
                _retry_after,
                self.limits,
                patience,
            )
        except TimeoutError as error:
            raise UnansweredError(Code.UNAVAILABLE, str(error)) from None
        if reply.is_too_long:
            what = f"{_NAME} answered with more than can be read"
            if method == "GET":
                raise RelayError(Code.TOO_LARGE, what)
            raise UnansweredError(Code.UNAVAILABLE, what)
        if reply.status != httpx.codes.OK:
            is_unknown = status_outcome(reply.status) is Outcome.UNKNOWN and method != "GET"
            what = f"{_NAME} did not answer (status {reply.status})"
            raise UnansweredError(Code.UNAVAILABLE, what) if is_unknown else _refusal(reply)
        try:
            return orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            what = f"{_NAME} answered with something that is not JSON"
            raise UnansweredError(Code.UNAVAILABLE, what) from None

    async def deliver(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send something with a transaction id, once more if unanswered: it happens once.

        Nothing is sent while the homeserver takes no more from this bot.

        Raises:
            RelayError: It was refused, or the homeserver cannot be reached.
            TimeoutError: The outcome is unknown.
        """
        return await self.pauses.keep(_SENDING, _NAME, lambda: self._put(path, body))

    async def _put(self, path: str, body: Mapping[str, Any]) -> Any:
        seconds = self.settings.send_seconds
        try:
            return await self.ask("PUT", path, body, seconds=seconds)
        except UnansweredError:
            await asyncio.sleep(1.0)
        try:
            return await self.ask("PUT", path, body, seconds=seconds)
        except RelayError as error:
            if isinstance(error, RateLimitedError):
                self.pauses.note(_SENDING, error.retry_after)
            # A refusal of the repetition says nothing of the request before it.
            raise TimeoutError(error.what) from None

    async def check_user(self, user_id: str) -> None:
        """Raise RelayError if the token is not the bot's, which must skip its own messages."""
        longest = self.settings.listen_wait_seconds
        answer = await self.ask("GET", f"{CLIENT}/account/whoami", patience=longest)
        if not isinstance(answer, dict) or answer.get("user_id") != user_id:
            raise RelayError(
                Code.UNAUTHORIZED,
                "the access token belongs to another user than the bot",
                where="user_id",
                mend=f"set user_id to the token's user, or the token of {user_id}",
            )


@asynccontextmanager
async def open_homeserver(
    settings: MatrixSettings,
    token: SecretStr,
    clock: Clock,
    limits: PlatformLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Homeserver]:
    """Open a homeserver; nothing is sent yet."""
    limits = limits.of(settings)
    headers = {"content-type": "application/json", "user-agent": "accord"}
    address = settings.homeserver.rstrip("/")
    async with open_client(limits, base_url=address, headers=headers) as client:
        yield Homeserver(client, settings, token, limits, clock)


def _refusal(reply: ServiceResponse) -> RelayError:
    status, data = reply.status, reply.json
    name = data.get("errcode") if isinstance(data, dict) else None
    is_named = isinstance(name, str) and name.isascii() and len(name) <= 64
    if is_named and (name in _REVOKED or status == httpx.codes.UNAUTHORIZED):
        return RelayError(
            Code.UNAUTHORIZED,
            f"{_NAME} refuses the access token (status {status}, {name})",
            where="access_token",
            mend="log the bot in again and set the new token",
        )
    # Without a name, a proxy before the homeserver answered: it says nothing of rooms or tokens.
    code = _CODES.get(status, Code.UNAVAILABLE) if is_named else Code.UNAVAILABLE
    what = f"{_NAME} does not work (status {status})"
    if is_named:
        what = f"{_NAME} refuses (status {status}, {name})"
    wait = _retry_after(reply)
    return RelayError(code, what) if wait is None else RateLimitedError(what, wait)


def _retry_after(reply: ServiceResponse) -> float | None:
    """Seconds that a rate limit asks to wait, by its header or its body; None if it is none."""
    if reply.retry_after is None or reply.retry_header is not None:
        return reply.retry_after
    data = reply.json
    millis = data.get("retry_after_ms") if isinstance(data, dict) else None
    if isinstance(millis, int | float) and not isinstance(millis, bool) and 0 <= millis < 1e12:
        return millis / 1000
    return reply.retry_after


class Rooms:
    """The known rooms of one bot; a room's state is read again after `seconds`."""

    def __init__(
        self, homeserver: Homeserver, bot_id: str, clock: Clock, seconds: float = math.inf
    ) -> None:
        self._homeserver = homeserver
        self._bot_id = bot_id
        self._clock = clock
        self._seconds = seconds
        self._rooms: LRUCache[str, Room] = LRUCache(homeserver.settings.rooms)
        self._senders: LRUCache[tuple[str, str], str] = LRUCache(_MOST_SENDERS)
        self._in_clear: LRUCache[str, float] = LRUCache(homeserver.settings.rooms)
        self._changes = 0

    async def room(self, room_id: str) -> Room:
        """A room with its scope, from the cache if it is there.

        Raises:
            RelayError: The homeserver did not answer; the same holds for the methods below.
        """
        known = self._rooms.get(room_id)
        if known is None or self._clock.monotonic() - known.read_at > self._seconds:
            known = await self._read(room_id)
            self._rooms[room_id] = known
        while known.scope is None:
            changes = self._changes
            scope = await self._scope(known)
            if changes == self._changes:  # no event came meanwhile that may have changed it
                known.scope = scope
        return known

    async def current(self, room_id: str) -> Room:
        """A room with its scope as they are now, read from the homeserver."""
        room = await self._read(room_id)
        room.scope = await self._scope(room)
        return room

    def apply(self, room_id: str, event: Payload) -> None:
        """Apply a state event."""
        self._changes += 1
        kind = event.get("type")
        is_own = kind == MEMBER and event.get("state_key") == self._bot_id
        if kind == CHILD or is_own:
            # A space lists other rooms now, or the bot can see other spaces.
            for each in self._rooms.values():
                each.scope = None
        if kind == ENCRYPTION:
            self._in_clear.pop(room_id, None)
        if room_id in self._rooms:
            self._rooms[room_id].apply(event)

    def forget(self, room_id: str) -> None:
        """Forget a room; it is read again when it is needed."""
        self._changes += 1
        self._rooms.pop(room_id, None)

    def clear(self) -> None:
        """Forget all rooms: another process may have received state events meanwhile."""
        self._changes += 1
        self._rooms.clear()

    def known_scope(self, room_id: str) -> str | None:
        """The scope of a room, if it is in the cache."""
        known = self._rooms.get(room_id)
        return None if known is None else known.scope

    async def is_member(self, room_id: str, user_id: str) -> bool:
        """Whether a user is in a room now."""
        try:
            member = await self._homeserver.ask("GET", room_path(room_id, "state", MEMBER, user_id))
        except RelayError as error:
            if error.code is Code.NOT_FOUND:
                return False
            raise
        return isinstance(member, dict) and member.get("membership") == "join"

    async def require_unencrypted(self, room_id: str) -> None:
        """Raise RelayError if a room is encrypted."""
        now = self._clock.monotonic()
        if now >= self._in_clear.get(room_id, -math.inf):
            try:
                await self._homeserver.ask("GET", room_path(room_id, "state", ENCRYPTION))
            except RelayError as error:
                if error.code is not Code.NOT_FOUND:
                    raise
            else:
                raise RelayError(
                    Code.FORBIDDEN, "the room is encrypted, which the bot does not support"
                )
            self._in_clear[room_id] = now + _IN_CLEAR_SECONDS

    def remember_author(self, room_id: str, event_id: str, user_id: str) -> None:
        """Remember the author of a message."""
        self._senders[room_id, event_id] = user_id

    async def author(self, room_id: str, event_id: str) -> str | None:
        """The author of a message; None if unknown."""
        if (room_id, event_id) not in self._senders:
            try:
                event = await self._homeserver.ask("GET", room_path(room_id, "event", event_id))
            except RelayError as error:
                if error.code is Code.UNAUTHORIZED:
                    raise
                return None
            sender = event.get("sender") if isinstance(event, dict) else None
            self.remember_author(room_id, event_id, sender if isinstance(sender, str) else "")
        return self._senders[room_id, event_id] or None

    async def _read(self, room_id: str) -> Room:
        room = Room(room_id, self._clock.monotonic())
        try:
            state = await self._homeserver.ask("GET", room_path(room_id, "state"))
        except RelayError as error:
            if error.code is not Code.TOO_LARGE:
                raise
            # The room stays without a name, and is a scope of its own.
            _log.warning("a room's state is too large to be read", room=room_id)
        else:
            room.apply_all(state if isinstance(state, list) else ())
        return room

    async def _scope(self, room: Room) -> str:
        # The specification of Matrix: of several canonical parents the one that sorts first counts.
        for space in sorted(room.parents)[:_MOST_PARENTS]:
            try:
                child = await self._homeserver.ask("GET", room_path(space, "state", CHILD, room.id))
            except RelayError as error:
                if error.code not in _HIDDEN:
                    raise
                continue
            if isinstance(child, dict) and isinstance(child.get("via"), list) and child["via"]:
                return space
        return room.id
