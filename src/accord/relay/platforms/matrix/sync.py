"""Listening by `/sync`: from where the last owner stopped, and nothing is left out.

Owns the position. It is remembered after everything before it is on disk; what comes twice is taken
once, by its id. Where the homeserver shows only the last part of what was said, the gap is read
page by page. A bot that is new here hears what is said from now on; one that was invited hears what
was said since the invitation.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import orjson
import structlog

from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.matrix.history import STATE, TIMELINE, History
from accord.relay.platforms.matrix.homeserver import CLIENT, LONG_WAIT, Homeserver
from accord.relay.platforms.matrix.intake import Intake
from accord.relay.platforms.matrix.places import is_room
from accord.relay.platforms.matrix.rooms import Rooms
from accord.relay.platforms.settings.matrix import MatrixSettings
from accord.relay.wire.members import Payload

_SINCE: Final = "since"
_NOTHING: Final = {"not_types": ["*"]}
_SHOWN: Final = 50
"""How many of a room's last events a batch shows; those before are read as a gap."""

_INVITES_AT_ONCE: Final = 8
_SLACK_SECONDS: Final = 20.0
_LONGEST_DELAY: Final = 60.0
_log = structlog.stdlib.get_logger(__name__)


class Sync:
    """The loop that asks for news."""

    def __init__(
        self, settings: MatrixSettings, homeserver: Homeserver, rooms: Rooms, intake: Intake
    ) -> None:
        self._settings = settings
        self._homeserver = homeserver
        self._rooms = rooms
        self._intake = intake
        self._history = History(homeserver, settings.user_id)

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled.

        Raises:
            RelayError: The homeserver refuses the token, or what was heard was not taken.
            StoreError: What was heard was not taken.
        """
        self._rooms.clear()
        since = (await context.recall()).get(_SINCE)
        is_known = is_heard = False
        shown = _SHOWN
        delay = 1.0
        while True:
            try:
                if not is_known:
                    await self._homeserver.introduce(self._settings.user_id)
                    is_known = True
                # At first and after trouble, one wants to know soon that all is well.
                seconds = self._settings.sync_seconds if is_heard else 0
                answer = await self._ask(since, seconds, shown)
                if answer is None:
                    _log.error("the homeserver does not know where the bot stopped; it begins anew")
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
                await asyncio.sleep(delay)
                delay = min(delay * 2, _LONGEST_DELAY)
                continue
            context.ready()
            is_heard, shown, delay = True, _SHOWN, 1.0
            if answer["next_batch"] != since:
                since = answer["next_batch"]
                await context.remember({_SINCE: str(since)})

    async def _ask(self, since: str | None, seconds: int, shown: int) -> Payload | None:
        """What is new; None where the homeserver knows nothing of this position.

        It may have been restored from an old copy, or be another one than before.
        """
        query = {"timeout": str(seconds * 1000), "set_presence": "offline"}
        query["filter"] = _filter(shown if since else 0)
        if since is not None:
            query[_SINCE] = since
        try:
            answer = await self._homeserver.ask(
                "GET",
                f"{CLIENT}/sync",
                query=query,
                seconds=seconds + _SLACK_SECONDS,
                patience=LONG_WAIT,
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
        # One to a room whose server sleeps must not hold up the others.
        turns = asyncio.Semaphore(_INVITES_AT_ONCE)

        async def answer(room_id: str, shown: Any) -> None:
            async with turns:
                await self._intake.invited(room_id, _events(shown, "invite_state"))

        await asyncio.gather(*(answer(*each) for each in invites.items()))

    async def _take_room(
        self, room_id: str, shown: Any, since: str, context: PlatformContext
    ) -> None:
        state, timeline = _events(shown, "state"), _events(shown, "timeline")
        about = _object(shown, "timeline")
        before = about.get("prev_batch")
        for event in state:
            self._intake.note(room_id, event, context)
        entry = await self._history.entry(room_id, [*state, *timeline])
        if entry is not None:
            timeline = await self._history.since_entry(room_id, timeline, before, entry)
        elif about.get("limited") is True and isinstance(before, str):
            async for page in self._history.gap(room_id, since, before):
                await self._intake.take(room_id, page, context)
        await self._intake.take(room_id, timeline, context)


def _filter(shown: int) -> str:
    """What is wanted of each room; of none anything but invitations where nothing is shown."""
    state = {"types": STATE, "lazy_load_members": True} if shown else _NOTHING
    timeline = {"types": TIMELINE, "limit": shown} if shown else {**_NOTHING, "limit": 1}
    room = {"account_data": _NOTHING, "ephemeral": _NOTHING, "state": state, "timeline": timeline}
    return orjson.dumps({"presence": _NOTHING, "account_data": _NOTHING, "room": room}).decode()


def _object(value: Any, name: str) -> dict[str, Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _rooms(shown: Any, name: str) -> dict[str, Any]:
    return {room: each for room, each in _object(shown, name).items() if is_room(room)}


def _events(shown: Any, name: str) -> list[Any]:
    found = _object(shown, name).get("events")
    return found if isinstance(found, list) else []
