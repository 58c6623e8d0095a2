"""How events of Matrix reach us: by `/sync`, or as transactions of an application service.

The position of a sync is stored after everything before it; a transaction is answered when
everything in it is stored. Events that come twice are deduplicated by their ids. What cannot be
read now raises, so that it is asked for again.
"""

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from accord.kernel.errors import AccordError
from accord.kernel.files import write_private
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import read_body, retry_delay, watch_service
from accord.relay.platforms.matrix.api import CLIENT, Homeserver, Rooms, room_path
from accord.relay.platforms.matrix.events import ENCRYPTED, MESSAGE, STICKER, EventHandler
from accord.relay.platforms.matrix.rules import (
    CHILD,
    ENCRYPTION,
    MEMBER,
    PARENT,
    SINGLE,
    is_room,
    localpart_of,
    membership_of,
)
from accord.relay.platforms.settings import MatrixSettings, resolve_secret
from accord.relay.rules.members import Payload

STATE: Final = [*SINGLE, ENCRYPTION, MEMBER, PARENT, CHILD]
"""The kinds of state that are wanted."""

TIMELINE: Final = [MESSAGE, STICKER, ENCRYPTED, *STATE]
"""The kinds of events that are wanted."""

_FILTER: Final = orjson.dumps({"types": TIMELINE}).decode()
_MOST_EMPTY_PAGES: Final = 100
_log = structlog.stdlib.get_logger(__name__)
_SINCE: Final = "since"
_NOTHING: Final = {"not_types": ["*"]}


@dataclass(frozen=True, slots=True)
class RoomHistory:
    """The history of the bot's rooms."""

    homeserver: Homeserver
    bot_id: str

    @property
    def settings(self) -> MatrixSettings:
        """The settings of the bot."""
        return self.homeserver.settings

    def gap(self, room_id: str, start: str, end: str) -> AsyncIterator[list[Any]]:
        """The events between two positions, in order, a page at a time."""
        return self._pages(room_id, "f", start, end)

    async def entry(self, room_id: str, events: list[Any]) -> str | None:
        """The event by which the bot has just entered a room: its invitation, else its join."""
        joined = [each for each in events if membership_of(each, self.bot_id) == "join"]
        if not joined:
            return None
        own = joined[-1]
        unsigned = _object(own, "unsigned")
        replaced = unsigned.get("replaces_state")
        before: Any = _object(unsigned, "prev_content").get("membership")
        if before is None and isinstance(replaced, str):
            event = await self._allowed(room_path(room_id, "event", replaced))
            before = membership_of(event, self.bot_id)
        if before == "join":
            return None
        entry = replaced if before == "invite" else own.get("event_id")
        return entry if isinstance(entry, str) else None

    async def since_entry(
        self, room_id: str, timeline: list[Any], before: Any, entry: str
    ) -> list[Any]:
        """The events since the bot entered; at most some pages."""
        found = timeline
        if _index_of(found, entry) is None and isinstance(before, str):
            pages = 0
            async for page in self._pages(room_id, "b", before, None):
                found = page[::-1] + found
                pages += 1
                if _index_of(page, entry) is not None or pages == self.settings.pages_back:
                    break
        return found[_index_of(found, entry) or 0 :]

    async def _pages(
        self, room_id: str, direction: str, start: str, end: str | None
    ) -> AsyncIterator[list[Any]]:
        """The events of a room from one position on, a page at a time."""
        limit = str(self.settings.page)
        query = {"dir": direction, "limit": limit, "filter": _FILTER, "from": start}
        if end is not None:
            query["to"] = end
        empty = 0
        while empty < _MOST_EMPTY_PAGES:
            answer = await self._allowed(room_path(room_id, "messages"), query)
            chunk = answer.get("chunk") if isinstance(answer, dict) else None
            events = chunk if isinstance(chunk, list) else []
            empty = 0 if events else empty + 1
            yield events
            after = answer.get("end") if isinstance(answer, dict) else None
            if not isinstance(after, str) or after == query["from"]:
                return
            query["from"] = after

    async def _allowed(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The answer to a request about a room; None if the bot may not have it."""
        try:
            longest = self.settings.listen_wait_seconds
            return await self.homeserver.ask("GET", path, query=query, patience=longest)
        except RelayError as error:
            if error.code not in (Code.BAD_REQUEST, Code.FORBIDDEN, Code.NOT_FOUND):
                raise
            _log.warning("a part of a room cannot be read", reason=str(error))
            return None


def _index_of(events: list[Any], event_id: str) -> int | None:
    for index, event in enumerate(events):
        if isinstance(event, dict) and event.get("event_id") == event_id:
            return index
    return None


def _object(value: Any, name: str) -> dict[str, Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


class SyncListener:
    """The loop around `/sync`."""

    def __init__(
        self, settings: MatrixSettings, homeserver: Homeserver, rooms: Rooms, handler: EventHandler
    ) -> None:
        self._settings = settings
        self._homeserver = homeserver
        self._rooms = rooms
        self._handler = handler
        self._history = RoomHistory(homeserver, settings.user_id)

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled.

        Raises:
            RelayError: The homeserver refuses the token, or events were not stored.
            StoreError: Events were not stored.
        """
        self._rooms.clear()
        since = (await context.recall()).get(_SINCE)
        is_known = is_heard = False
        shown = self._settings.shown
        failures = 0
        while True:
            try:
                if not is_known:
                    await self._homeserver.check_user(self._settings.user_id)
                    is_known = True
                # At first and after trouble, do not wait for events before reporting ready.
                seconds = self._settings.sync_seconds if is_heard else 0
                answer = await self._ask(since, seconds, shown)
                if answer is None:
                    _log.error("the homeserver does not know the sync position; starting over")
                    since = None
                    continue
                await self._take(answer, since, context)
            except RelayError as error:
                if error.code not in (Code.UNAVAILABLE, Code.RATE_LIMITED, Code.TOO_LARGE):
                    raise
                is_heard = False
                if error.code is Code.TOO_LARGE:
                    shown = 1
                context.troubled(error)
                await asyncio.sleep(retry_delay(failures, self._homeserver.limits))
                failures += 1
                continue
            context.ready()
            is_heard, shown, failures = True, self._settings.shown, 0
            if answer["next_batch"] != since:
                since = answer["next_batch"]
                await context.remember({_SINCE: str(since)})

    async def _ask(self, since: str | None, seconds: int, shown: int) -> Payload | None:
        """The next batch; None if the homeserver does not know the position (any more)."""
        query = {"timeout": str(seconds * 1000), "set_presence": "offline"}
        query["filter"] = _filter(shown if since else 0)
        if since is not None:
            query[_SINCE] = since
        try:
            answer = await self._homeserver.ask(
                "GET",
                f"{CLIENT}/sync",
                query=query,
                seconds=seconds + self._settings.sync_slack_seconds,
                patience=self._settings.listen_wait_seconds,
            )
        except RelayError as error:
            if since is not None and error.code is Code.BAD_REQUEST:
                return None
            raise
        if not isinstance(answer, dict) or not isinstance(answer.get("next_batch"), str):
            raise RelayError(Code.UNAVAILABLE, "the Matrix homeserver answered without a position")
        return answer

    async def _take(self, answer: Payload, since: str | None, context: PlatformContext) -> None:
        rooms = _object(answer, "rooms")
        await self._answer_invitations(_rooms(rooms, "invite"))
        if since is None:
            return
        for room_id, shown in _rooms(rooms, "join").items():
            await self._take_room(room_id, shown, since, context)
        for room_id, shown in _rooms(rooms, "leave").items():
            await self._take_room(room_id, shown, since, context)
            self._rooms.forget(room_id)

    async def _answer_invitations(self, invites: Mapping[str, Any]) -> None:
        # A room whose server does not answer must not hold up the others.
        turns = asyncio.Semaphore(self._settings.invites_at_once)

        async def answer(room_id: str, shown: Any) -> None:
            async with turns:
                await self._handler.answer_invitation(room_id, _events(shown, "invite_state"))

        await asyncio.gather(*(answer(*each) for each in invites.items()))

    async def _take_room(
        self, room_id: str, shown: Any, since: str, context: PlatformContext
    ) -> None:
        state, timeline = _events(shown, "state"), _events(shown, "timeline")
        about = _object(shown, "timeline")
        before = about.get("prev_batch")
        for event in state:
            self._handler.apply_state(room_id, event, context)
        entry = await self._history.entry(room_id, [*state, *timeline])
        if entry is not None:
            timeline = await self._history.since_entry(room_id, timeline, before, entry)
        elif about.get("limited") is True and isinstance(before, str):
            async for page in self._history.gap(room_id, since, before):
                await self._handler.take(room_id, page, context)
        await self._handler.take(room_id, timeline, context)


def _filter(shown: int) -> str:
    """The filter for `/sync`; where no events are shown, only invitations are asked for."""
    state = {"types": STATE, "lazy_load_members": True} if shown else _NOTHING
    timeline = {"types": TIMELINE, "limit": shown} if shown else {**_NOTHING, "limit": 1}
    room = {"account_data": _NOTHING, "ephemeral": _NOTHING, "state": state, "timeline": timeline}
    return orjson.dumps({"presence": _NOTHING, "account_data": _NOTHING, "room": room}).decode()


def _rooms(shown: Any, name: str) -> dict[str, Any]:
    return {room: each for room, each in _object(shown, name).items() if is_room(room)}


def _events(shown: Any, name: str) -> list[Any]:
    found = _object(shown, name).get("events")
    return found if isinstance(found, list) else []


def service_path(settings: MatrixSettings) -> str:
    """The path below which the homeserver calls."""
    return f"/relay/platforms/matrix/{settings.user_id.removeprefix('@')}"


def write_registration(settings: MatrixSettings, public_url: str, path: Path) -> None:
    """Write the registration file for the homeserver, readable by its owner alone.

    `public_url` is where the homeserver reaches the connector; `path` must not exist.

    Raises:
        RelayError: A token is missing, or the file cannot be written.
    """
    as_token = resolve_secret(settings.access_token, settings.access_token_file, "access_token")
    hs_token = resolve_secret(settings.hs_token, settings.hs_token_file, "hs_token")
    localpart = localpart_of(settings.user_id)
    registration = {
        "id": f"accord-{localpart}",
        "url": f"{public_url.rstrip('/')}{service_path(settings)}",
        "as_token": as_token.get_secret_value(),
        "hs_token": hs_token.get_secret_value(),
        "sender_localpart": localpart,
        "rate_limited": False,
        "namespaces": {"users": [{"exclusive": True, "regex": re.escape(settings.user_id)}]},
    }
    try:
        # What is JSON is YAML.
        write_private(path, orjson.dumps(registration, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as error:
        raise RelayError(
            Code.CONFLICT, f"the registration cannot be written ({error.strerror})", where=str(path)
        ) from None


class AppService:
    """The endpoints that the homeserver calls with `hs_token`."""

    def __init__(
        self,
        settings: MatrixSettings,
        homeserver: Homeserver,
        handler: EventHandler,
        hs_token: SecretStr,
    ) -> None:
        self._settings = settings
        self._homeserver = homeserver
        self._handler = handler
        self._expected = f"Bearer {hs_token.get_secret_value()}".encode()
        self._is_registered = False
        self.context: PlatformContext | None = None

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes, to be mounted at the root."""
        base = f"{service_path(self._settings)}/_matrix/app/v1"
        return [
            Route(f"{base}/transactions/{{txn}}", self._transaction, methods=["PUT"]),
            Route(f"{base}/ping", self._ping, methods=["POST"]),
            # No users or rooms are created on demand.
            Route(f"{base}/users/{{name:path}}", self._nothing, methods=["GET"]),
            Route(f"{base}/rooms/{{name:path}}", self._nothing, methods=["GET"]),
        ]

    async def run(self, context: PlatformContext) -> None:
        """Check the registration now and then; raises RelayError if the token is refused."""
        await watch_service(context, self._check, self._homeserver.limits)

    async def _check(self) -> None:
        wanted = {
            "type": "m.login.application_service",
            "username": localpart_of(self._settings.user_id),
            "inhibit_login": True,
        }
        if not self._is_registered:
            try:
                await self._homeserver.ask("POST", f"{CLIENT}/register", wanted)
            except RelayError as error:
                if error.code is not Code.BAD_REQUEST:  # it is there already
                    raise
            self._is_registered = True
        await self._homeserver.check_user(self._settings.user_id)

    async def _transaction(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if self.context is None:
            return _refuse(503, "M_UNKNOWN", "the connector is not ready")
        try:
            body = await read_body(request, self._homeserver.limits)
        except RelayError:
            return _refuse(413, "M_TOO_LARGE", "a transaction is smaller, and comes in time")
        try:
            transaction = orjson.loads(body)
        except orjson.JSONDecodeError:
            transaction = None
        events = transaction.get("events") if isinstance(transaction, dict) else None
        if not isinstance(events, list):
            return _refuse(400, "M_BAD_JSON", "a transaction is an object with a list of events")
        try:
            for event in events:
                await self._take(event, self.context)
        except AccordError as error:
            _log.warning("a transaction was not stored", reason=str(error))
            return _refuse(503, "M_UNKNOWN", "the transaction was not stored; send it again")
        return JSONResponse({})

    async def _take(self, event: Any, context: PlatformContext) -> None:
        room_id: Any = event.get("room_id") if isinstance(event, dict) else None
        if not is_room(room_id):
            return
        if membership_of(event, self._settings.user_id) == "invite":
            unsigned = event.get("unsigned")
            shown = unsigned.get("invite_room_state") if isinstance(unsigned, dict) else None
            state = shown if isinstance(shown, list) else []
            await self._handler.answer_invitation(room_id, [event, *state])
        await self._handler.take(room_id, [event], context)

    async def _ping(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse({})

    async def _nothing(self, request: Request) -> Response:
        return self._refusal(request) or _refuse(404, "M_NOT_FOUND", "there is no such thing")

    def _refusal(self, request: Request) -> Response | None:
        given = request.headers.get("authorization", "")
        if not given:
            return _refuse(401, "M_UNAUTHORIZED", "the hs_token is missing")
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._expected):
            return _refuse(403, "M_FORBIDDEN", "this is not the hs_token")
        return None


def _refuse(status: int, name: str, what: str) -> Response:
    return JSONResponse({"errcode": name, "error": what}, status)
