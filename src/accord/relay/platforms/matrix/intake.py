"""One event after the other: what the homeserver tells, handed to the connector.

Owns what becomes of an event, whichever way it came: state is taken over, invitations are answered,
messages are handed on. It returns when what it was given is on disk.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import structlog

from accord.relay.connector.platform import Inbound, PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.matrix.homeserver import CLIENT, Homeserver, room_path
from accord.relay.platforms.matrix.messages import ENCRYPTED, inbound, read_message
from accord.relay.platforms.matrix.places import server_of
from accord.relay.platforms.matrix.rooms import Rooms
from accord.relay.platforms.matrix.state import CHILD, ENCRYPTION, MEMBER, PARENT, membership_of
from accord.relay.platforms.settings.matrix import MatrixSettings

_MOST_WARNED: Final = 10_000
_JOIN_SECONDS: Final = 30.0
_NEVER: Final = (Code.BAD_REQUEST, Code.TOO_LARGE)
_POWER: Final = "m.room.power_levels"
_log = structlog.stdlib.get_logger(__name__)


class Intake:
    """The way in.

    Args:
        settings: Who the bot is, and whose invitations it accepts.
        homeserver: Where it lives.
        rooms: What is known of its rooms.
    """

    def __init__(self, settings: MatrixSettings, homeserver: Homeserver, rooms: Rooms) -> None:
        self._settings = settings
        self._homeserver = homeserver
        self._rooms = rooms
        self._bot_id = settings.user_id
        self._unreadable: set[str] = set()

    def note(self, room_id: str, event: Any, context: PlatformContext) -> None:
        """Take over a state event; anything else is nothing here."""
        if not isinstance(event, dict) or not isinstance(event.get("state_key"), str):
            return
        scope = self._rooms.known_scope(room_id)
        self._rooms.apply(room_id, event)
        kind = event.get("type")
        if kind in (PARENT, CHILD):
            context.visibility_changed()
        elif kind in (MEMBER, _POWER):
            context.visibility_changed(scope)

    async def take(self, room_id: str, events: Sequence[Any], context: PlatformContext) -> None:
        """Take events of a room that the bot is in, in their order.

        Raises:
            RelayError: Not all were taken, and they must be shown again.
            StoreError: The same.
        """
        read = [await self._read(room_id, event, context) for event in events]
        taken = await asyncio.gather(
            *(context.ingest(each) for each in read if each is not None), return_exceptions=True
        )
        for error in taken:
            if isinstance(error, RelayError) and error.code in _NEVER:
                _log.warning("a message cannot be kept", room=room_id, reason=str(error))
            elif isinstance(error, BaseException):
                raise error

    async def _read(self, room_id: str, event: Any, context: PlatformContext) -> Inbound | None:
        """What an event is to the connector; its state is taken over."""
        if not isinstance(event, dict):
            return None
        self.note(room_id, event, context)
        if event.get("type") == ENCRYPTED:
            self._warn(room_id)
        message = read_message(event, self._bot_id)
        if message is None:
            return None
        self._rooms.wrote(room_id, message.event_id, message.sender)
        if message.sender == self._bot_id:
            return None
        try:
            room = await self._rooms.room(room_id)
        except RelayError as error:
            if error.code not in (Code.FORBIDDEN, Code.NOT_FOUND):
                raise
            # The bot was put out meanwhile.
            _log.warning("a message's room is closed to the bot", room=room_id, reason=str(error))
            return None
        replied_to = None
        if message.reply_to is not None:
            replied_to = await self._rooms.author(room_id, message.reply_to)
        return inbound(message, room, self._bot_id, replied_to)

    async def invited(self, room_id: str, state: Sequence[Any]) -> None:
        """Answer an invitation: join, or decline.

        Args:
            room_id: Where to.
            state: What the homeserver shows of the room's state.

        Raises:
            RelayError: The homeserver refuses the token.
        """
        events = [each for each in state if isinstance(each, dict)]
        inviter = next(
            (
                each.get("sender")
                for each in events
                if membership_of(each, self._bot_id) == "invite"
            ),
            None,
        )
        why = ""
        if not isinstance(inviter, str) or not may_invite(self._settings, inviter):
            why = "this bot accepts no invitation from you"
        elif any(each.get("type") == ENCRYPTION for each in events):
            why = "this bot cannot read encrypted rooms"
        try:
            if not why:
                path = f"{CLIENT}/join/{quote(room_id, safe='')}"
                await self._homeserver.ask("POST", path, {}, seconds=_JOIN_SECONDS)
            else:
                await self._homeserver.ask("POST", room_path(room_id, "leave"), {"reason": why})
        except RelayError as error:
            if error.code is Code.UNAUTHORIZED:
                raise
            # A room whose server is gone must not keep the bot from all the others.
            _log.warning("an invitation could not be answered", room=room_id, reason=str(error))
        else:
            _log.info("an invitation was answered", room=room_id, inviter=inviter, declined=why)

    def _warn(self, room_id: str) -> None:
        if room_id not in self._unreadable and len(self._unreadable) < _MOST_WARNED:
            self._unreadable.add(room_id)
            _log.warning("a room is encrypted, and what is said there cannot be read", room=room_id)


def may_invite(settings: MatrixSettings, user_id: str) -> bool:
    """Whether the bot follows a user's invitation."""
    match settings.invites:
        case "anyone":
            return True
        case "nobody":
            return False
        case "server":
            return server_of(user_id) == server_of(settings.user_id)
        case named:
            return user_id in named or server_of(user_id) in named
