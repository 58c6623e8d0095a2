"""What a room is, from its state events: its name, who is in it, who manages it, what is around it.

A fold: the state events of a room in any order in which each is the newest of its kind when it
comes. Pure; whether a space agrees that a room is in it is asked elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from accord.relay.wire.members import Payload

_CREATE: Final = "m.room.create"
_NAME: Final = "m.room.name"
_ALIAS: Final = "m.room.canonical_alias"
_TOPIC: Final = "m.room.topic"
_JOIN_RULES: Final = "m.room.join_rules"
_POWER: Final = "m.room.power_levels"
MEMBER: Final = "m.room.member"
ENCRYPTION: Final = "m.room.encryption"
PARENT: Final = "m.space.parent"
CHILD: Final = "m.space.child"

SINGLE: Final = (_CREATE, _NAME, _ALIAS, _TOPIC, _JOIN_RULES, _POWER)
"""Kinds of state that a room has one of."""

_CREATORS_STAND_ABOVE: Final = 12
"""The room version from which on whoever made a room may do everything in it."""

_MODERATOR: Final = 50
_INVITED_ONLY: Final = ("invite", "private")


@dataclass(slots=True)
class Room:
    """A room.

    Attributes:
        read_at: When its state was read, by a clock that never goes back.
        members: Who is in it or invited, with the name that is shown.
        parents: The spaces that it says it belongs to first of all.
        scope: The scope of its messages, once somebody has found it.
    """

    id: str
    read_at: float = 0.0
    members: dict[str, str | None] = field(default_factory=dict)
    parents: set[str] = field(default_factory=set)
    scope: str | None = None
    _single: dict[str, Payload] = field(default_factory=dict)
    _creator: str | None = None

    def apply(self, event: Payload) -> None:
        """Take a state event; what is not one, or makes no sense, changes nothing."""
        kind, key, content = event.get("type"), event.get("state_key"), event.get("content")
        if not isinstance(key, str) or not isinstance(content, dict):
            return
        if kind == MEMBER:
            self._apply_member(key, content)
        elif kind == PARENT:
            is_canonical = content.get("canonical") is True and bool(content.get("via"))
            (self.parents.add if is_canonical else self.parents.discard)(key)
            self.scope = None
        elif kind in SINGLE and not key:
            self._single[kind] = content
            if kind == _CREATE:
                self._creator = _text(event.get("sender"))

    def apply_all(self, events: Iterable[Any]) -> None:
        """Take many."""
        for event in events:
            if isinstance(event, dict):
                self.apply(event)

    @property
    def name(self) -> str | None:
        """Its name, else its address."""
        return self._said(_NAME, "name") or self._said(_ALIAS, "alias")

    @property
    def topic(self) -> str | None:
        """What it is about."""
        return self._said(_TOPIC, "topic")

    def is_direct(self, bot_id: str) -> bool:
        """Whether it is a talk between the bot and one other, which nobody else can hear.

        An invitation may say that it is meant so, but only its members show that it is. A room with
        a name is a group that is still small.
        """
        is_closed = self._said(_JOIN_RULES, "join_rule") in _INVITED_ONLY
        return (
            is_closed
            and len(self.members) == 2
            and bot_id in self.members
            and self.name is None
            and not self.parents
        )

    def may_manage(self, user_id: str) -> bool:
        """Whether a user has the power to change its state."""
        if self._creators_stand_above and user_id in self._creators:
            return True
        levels = self._single.get(_POWER)
        if levels is None:
            return user_id in self._creators
        users = levels.get("users")
        given = users.get(user_id) if isinstance(users, dict) else None
        held = _level(given, _level(levels.get("users_default"), 0))
        return held >= max(1, _level(levels.get("state_default"), _MODERATOR))

    @property
    def _creators(self) -> set[str | None]:
        more = self._single.get(_CREATE, {}).get("additional_creators")
        named = more if self._creators_stand_above and isinstance(more, list) else ()
        return {self._creator, *(each for each in named if isinstance(each, str))}

    @property
    def _creators_stand_above(self) -> bool:
        version = self._said(_CREATE, "room_version") or ""
        is_number = version.isascii() and version.isdecimal() and len(version) < 6
        return is_number and int(version) >= _CREATORS_STAND_ABOVE

    def _apply_member(self, user_id: str, content: Payload) -> None:
        if content.get("membership") in ("join", "invite"):
            self.members[user_id] = _text(content.get("displayname"))
        else:
            self.members.pop(user_id, None)

    def _said(self, kind: str, member: str) -> str | None:
        return _text(self._single.get(kind, {}).get(member))


def membership_of(event: object, user_id: str) -> str | None:
    """What an event makes a user in its room; None for other events."""
    if not isinstance(event, dict) or event.get("type") != MEMBER:
        return None
    content = event.get("content")
    if event.get("state_key") != user_id or not isinstance(content, dict):
        return None
    return _text(content.get("membership"))


def _text(value: object) -> str | None:
    return value[:512] or None if isinstance(value, str) else None


def _level(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
