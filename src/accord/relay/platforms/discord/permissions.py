"""Who may do what in a channel: the algorithm that Discord documents. Pure.

Owns the reading of guilds, members and channels for this purpose, and the computation. What cannot
be read is `None`, from which the caller must conclude nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntFlag
from typing import Any, Final


class Permission(IntFlag):
    """The bits that are asked for by name; a set may have any other bit, too."""

    ADMINISTRATOR = 1 << 3
    MANAGE_CHANNELS = 1 << 4
    VIEW_CHANNEL = 1 << 10
    READ_MESSAGE_HISTORY = 1 << 16
    CONNECT = 1 << 20
    MANAGE_THREADS = 1 << 34


ALL: Final = (1 << 64) - 1
PRIVATE_THREAD: Final = 12
THREADS: Final = frozenset({10, 11, PRIVATE_THREAD})
_VOICED: Final = frozenset({2, 13})
_QUIET: Final = Permission.VIEW_CHANNEL | Permission.READ_MESSAGE_HISTORY
_LONGEST: Final = 20  # digits of a set of 64 bits


@dataclass(frozen=True, slots=True)
class Overwrite:
    """What a channel takes from a role or member, and what it gives."""

    deny: int = 0
    allow: int = 0

    def applied(self, permissions: int) -> int:
        """The permissions after it."""
        return permissions & ~self.deny | self.allow


_NOTHING: Final = Overwrite()


@dataclass(frozen=True, slots=True)
class Guild:
    """A guild: its owner, and what each role permits. The role of everyone has the guild's id."""

    id: str
    owner_id: str
    roles: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody in a guild.

    Attributes:
        silenced_until: The end of a time-out, in seconds since the epoch.
    """

    user_id: str
    roles: tuple[str, ...] = ()
    silenced_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel or thread; a thread has its parent's overwrites, not its own."""

    id: str
    kind: int
    guild_id: str
    parent_id: str | None = None
    role_overwrites: Mapping[str, Overwrite] = field(default_factory=dict)
    member_overwrites: Mapping[str, Overwrite] = field(default_factory=dict)

    @property
    def is_thread(self) -> bool:
        """Whether it is a thread in another channel."""
        return self.kind in THREADS


def in_guild(member: Member, guild: Guild) -> int:
    """What a member may do in a guild, before any channel is looked at."""
    if member.user_id == guild.owner_id:
        return ALL
    permissions = guild.roles.get(guild.id, 0)
    for role in member.roles:
        permissions |= guild.roles.get(role, 0)
    return ALL if permissions & Permission.ADMINISTRATOR else permissions


def in_channel(member: Member, guild: Guild, channel: Channel, now: float) -> int:
    """What a member may do in a channel that is no thread."""
    permissions = in_guild(member, guild)
    if permissions & Permission.ADMINISTRATOR:
        return ALL
    permissions = channel.role_overwrites.get(guild.id, _NOTHING).applied(permissions)
    deny = allow = 0
    for role in member.roles:
        if role != guild.id:
            overwrite = channel.role_overwrites.get(role, _NOTHING)
            deny |= overwrite.deny
            allow |= overwrite.allow
    permissions = Overwrite(deny, allow).applied(permissions)
    permissions = channel.member_overwrites.get(member.user_id, _NOTHING).applied(permissions)
    if not permissions & Permission.VIEW_CHANNEL:
        return 0
    if channel.kind in _VOICED and not permissions & Permission.CONNECT:
        return 0  # whoever may not connect does not see what is written beside the voices, either
    return permissions & _QUIET if now < member.silenced_until else permissions


def in_thread(
    member: Member, guild: Guild, thread: Channel, parent: Channel, *, joined: bool, now: float
) -> int:
    """What a member may do in a thread.

    Args:
        member: Who.
        guild: Where.
        thread: The thread.
        parent: The channel that it is in, whose permissions it inherits.
        joined: Whether the member was added to the thread; of a private one only that counts.
        now: Seconds since the epoch.
    """
    permissions = in_channel(member, guild, parent, now)
    is_open = thread.kind != PRIVATE_THREAD or joined
    return permissions if is_open or permissions & Permission.MANAGE_THREADS else 0


def read_guild(value: Any) -> Guild | None:
    """A guild as the API describes it."""
    match value:
        case {"id": str(guild_id), "owner_id": str(owner_id), "roles": list(roles)}:
            permitted: dict[str, int] = {}
            for role in roles:
                match role:
                    case {"id": str(role_id), "permissions": permissions}:
                        bits = _bits(permissions)
                    case _:
                        return None
                if bits is None:
                    return None
                permitted[role_id] = bits
            return Guild(guild_id, owner_id, permitted)
        case _:
            return None


def read_member(user_id: str, value: Any) -> Member | None:
    """A member as the API describes it."""
    match value:
        case {"roles": list(roles)} if all(isinstance(role, str) for role in roles):
            until = value.get("communication_disabled_until")
            if until is None:
                return Member(user_id, tuple(roles))
            seconds = moment(until)
            return None if seconds is None else Member(user_id, tuple(roles), seconds)
        case _:
            return None


def read_channel(value: Any) -> Channel | None:
    """A channel of a guild as the API describes it."""
    match value:
        case {"id": str(channel_id), "type": int(kind), "guild_id": str(guild_id)}:
            pass
        case _:
            return None
    parent_id, listed = value.get("parent_id"), value.get("permission_overwrites") or []
    if not isinstance(parent_id, str | None) or not isinstance(listed, list):
        return None
    roles: dict[str, Overwrite] = {}
    members: dict[str, Overwrite] = {}
    for each in listed:
        match each:
            case {"id": str(subject), "type": 0 | 1 as whose, "allow": allowed, "deny": denied}:
                allow, deny = _bits(allowed), _bits(denied)
            case _:
                return None
        if allow is None or deny is None:
            return None
        (members if whose else roles)[subject] = Overwrite(deny, allow)
    return Channel(channel_id, kind, guild_id, parent_id, roles, members)


def hidden(described: Mapping[str, Any], user_id: str, now: float) -> frozenset[str]:
    """The channels of a guild that a member surely cannot see, as GUILD_CREATE describes both."""
    guild = read_guild(described)
    people, channels = described.get("members"), described.get("channels")
    if guild is None or not isinstance(people, list) or not isinstance(channels, list):
        return frozenset()
    for each in people:
        match each:
            case {"user": {"id": str(found)}} if found == user_id:
                member = read_member(user_id, each)
                break
    else:
        return frozenset()
    if member is None:
        return frozenset()
    inside = [{**each, "guild_id": guild.id} for each in channels if isinstance(each, dict)]
    known = [channel for channel in map(read_channel, inside) if channel is not None]
    return frozenset(each.id for each in known if not in_channel(member, guild, each, now))


def moment(value: Any) -> float | None:
    """Seconds since the epoch of an ISO 8601 time; None where it is none."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return None


def _bits(value: Any) -> int | None:
    """A set of permissions, which the API writes as the text of a number."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        return None
    return int(value) if value.isascii() and value.isdecimal() else None
