"""The rooms that the bot is in, as far as somebody has asked: their state, and their scope.

Owns what is known and when it is forgotten. A room's state is read when it is first wanted and kept
up by the state events that come; where others may be told of them, it is read again after a while.

The scope of a room is the space around it, if both say so: the room names the space as its
canonical parent, and the space lists the room. Either alone could be claimed by anybody. Every
other room is a scope of its own, so that nobody becomes a tenant by being on the same server.
"""

import math
from collections import OrderedDict
from typing import Any, Final

import structlog

from accord.kernel.clock import Clock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.matrix.homeserver import Homeserver, room_path
from accord.relay.platforms.matrix.state import CHILD, ENCRYPTION, MEMBER, Room
from accord.relay.wire.members import Payload

_MOST_ROOMS: Final = 1000
_MOST_PARENTS: Final = 8
_MOST_SENDERS: Final = 10_000
_IN_CLEAR_SECONDS: Final = 300.0
_HIDDEN: Final = (Code.FORBIDDEN, Code.NOT_FOUND)
_log = structlog.stdlib.get_logger(__name__)


class Rooms:
    """What is known of rooms.

    Args:
        homeserver: Where they are.
        bot_id: Whose rooms they are.
        clock: Where time comes from.
        seconds: How long the state of a room is believed.
    """

    def __init__(
        self, homeserver: Homeserver, bot_id: str, clock: Clock, seconds: float = math.inf
    ) -> None:
        self._homeserver = homeserver
        self._bot_id = bot_id
        self._clock = clock
        self._seconds = seconds
        self._rooms: OrderedDict[str, Room] = OrderedDict()
        self._senders: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._in_clear: OrderedDict[str, float] = OrderedDict()
        self._changes = 0

    async def room(self, room_id: str) -> Room:
        """A room with its scope, for one who takes its events in their order.

        Raises:
            RelayError: The homeserver did not tell.
        """
        known = self._rooms.get(room_id)
        if known is None or self._clock.monotonic() - known.read_at > self._seconds:
            known = await self._read(room_id)
            self._rooms[room_id] = known
            _limit(self._rooms, _MOST_ROOMS)
        while known.scope is None:
            changes = self._changes
            scope = await self._scope(known)
            if changes == self._changes:  # nothing came meanwhile that may have made it another
                known.scope = scope
        return known

    async def current(self, room_id: str) -> Room:
        """A room with its scope as they are just now; nothing of it is kept.

        Raises:
            RelayError: The homeserver did not tell.
        """
        room = await self._read(room_id)
        room.scope = await self._scope(room)
        return room

    def apply(self, room_id: str, event: Payload) -> None:
        """Take a state event of a room."""
        self._changes += 1
        kind = event.get("type")
        is_own = kind == MEMBER and event.get("state_key") == self._bot_id
        if kind == CHILD or is_own:
            # A space lists other rooms now, or the bot sees another part of the world.
            for each in self._rooms.values():
                each.scope = None
        if kind == ENCRYPTION:
            self._in_clear.pop(room_id, None)
        if room_id in self._rooms:
            self._rooms[room_id].apply(event)

    def forget(self, room_id: str) -> None:
        """Forget a room, which is read anew when it is wanted."""
        self._changes += 1
        self._rooms.pop(room_id, None)

    def clear(self) -> None:
        """Forget all of them: somebody else may have been told what changed meanwhile."""
        self._changes += 1
        self._rooms.clear()

    def known_scope(self, room_id: str) -> str | None:
        """The scope of a room, if it is known."""
        known = self._rooms.get(room_id)
        return None if known is None else known.scope

    async def is_member(self, room_id: str, user_id: str) -> bool:
        """Whether a user is in a room just now.

        Raises:
            RelayError: The homeserver did not tell.
        """
        try:
            member = await self._homeserver.ask("GET", room_path(room_id, "state", MEMBER, user_id))
        except RelayError as error:
            if error.code is Code.NOT_FOUND:
                return False
            raise
        return isinstance(member, dict) and member.get("membership") == "join"

    async def demand_readable(self, room_id: str) -> None:
        """Refuse to speak in the clear where others speak in secret.

        Raises:
            RelayError: The room is encrypted, or the homeserver did not tell.
        """
        now = self._clock.monotonic()
        if now >= self._in_clear.get(room_id, -math.inf):
            try:
                await self._homeserver.ask("GET", room_path(room_id, "state", ENCRYPTION))
            except RelayError as error:
                if error.code is not Code.NOT_FOUND:
                    raise
            else:
                raise RelayError(Code.FORBIDDEN, "the room is encrypted, and the bot is not")
            self._in_clear[room_id] = now + _IN_CLEAR_SECONDS
            _limit(self._in_clear, _MOST_ROOMS)

    def wrote(self, room_id: str, event_id: str, user_id: str) -> None:
        """Remember who wrote a message, for whoever answers it."""
        self._senders[room_id, event_id] = user_id
        _limit(self._senders, _MOST_SENDERS)

    async def author(self, room_id: str, event_id: str) -> str | None:
        """Who wrote a message; None where nobody can tell."""
        if (room_id, event_id) not in self._senders:
            try:
                event = await self._homeserver.ask("GET", room_path(room_id, "event", event_id))
            except RelayError as error:
                if error.code is Code.UNAUTHORIZED:
                    raise
                return None
            sender = event.get("sender") if isinstance(event, dict) else None
            self.wrote(room_id, event_id, sender if isinstance(sender, str) else "")
        return self._senders[room_id, event_id] or None

    async def _read(self, room_id: str) -> Room:
        room = Room(room_id, self._clock.monotonic())
        try:
            state = await self._homeserver.ask("GET", room_path(room_id, "state"))
        except RelayError as error:
            if error.code is not Code.TOO_LARGE:
                raise
            # So many are in it that it has no name here, and no scope but its own.
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


def _limit(kept: OrderedDict[Any, Any], most: int) -> None:
    """Let go of what was kept longest."""
    while len(kept) > most:
        kept.popitem(last=False)
