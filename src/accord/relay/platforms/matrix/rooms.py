"""The state and scope of the bot's rooms, cached.

A room's state is read when it is first needed and kept up by state events. The scope of a room
is the space around it if both say so: the room names the space as its canonical parent, and the
space lists the room. Every other room is a scope of its own: nobody becomes a tenant by being on
the same server.
"""

import math
from collections import OrderedDict
from typing import Any, Final

import structlog

from accord.kernel.clock import Clock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.matrix.api import Homeserver, room_path
from accord.relay.platforms.matrix.rules import CHILD, ENCRYPTION, MEMBER, Room
from accord.relay.rules.members import Payload

_MOST_ROOMS: Final = 1000
_MOST_PARENTS: Final = 8
_MOST_SENDERS: Final = 10_000
_IN_CLEAR_SECONDS: Final = 300.0
_HIDDEN: Final = (Code.FORBIDDEN, Code.NOT_FOUND)
_log = structlog.stdlib.get_logger(__name__)


class Rooms:
    """The known rooms of one bot; a room's state is read again after `seconds`."""

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
        """A room with its scope, from the cache if it is there.

        Raises:
            RelayError: The homeserver did not answer; the same holds for the methods below.
        """
        known = self._rooms.get(room_id)
        if known is None or self._clock.monotonic() - known.read_at > self._seconds:
            known = await self._read(room_id)
            self._rooms[room_id] = known
            _limit(self._rooms, _MOST_ROOMS)
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
            _limit(self._in_clear, _MOST_ROOMS)

    def remember_author(self, room_id: str, event_id: str, user_id: str) -> None:
        """Remember the author of a message."""
        self._senders[room_id, event_id] = user_id
        _limit(self._senders, _MOST_SENDERS)

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


def _limit(kept: OrderedDict[Any, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
