"""Discord's ids, channels and permissions, computed as its documentation says. Pure.

Readers return None for what is malformed; callers must not conclude anything from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntFlag
from typing import Any, Final, TypeGuard

from cachetools import LRUCache

ALL: Final = (1 << 64) - 1
PRIVATE_THREAD: Final = 12
THREADS: Final = frozenset({10, 11, PRIVATE_THREAD})
_VOICED: Final = frozenset({2, 13})
_LONGEST_NUMBER: Final = 20  # digits of a set of 64 bits
_EPOCH_MS: Final = 1_420_070_400_000
_LONGEST_ID: Final = 20
DIRECT_CHATS: Final = frozenset({1, 3})
_MAX_CHATS: Final = 20_000


class Permission(IntFlag):
    """The permission bits that are used here; a set may have others, too."""

    ADMINISTRATOR = 1 << 3
    MANAGE_CHANNELS = 1 << 4
    VIEW_CHANNEL = 1 << 10
    READ_MESSAGE_HISTORY = 1 << 16
    CONNECT = 1 << 20
    MANAGE_THREADS = 1 << 34


_QUIET: Final = Permission.VIEW_CHANNEL | Permission.READ_MESSAGE_HISTORY


@dataclass(frozen=True, slots=True)
class Overwrite:
    """What a channel denies and allows to a role or member."""

    deny: int = 0
    allow: int = 0

    def applied(self, permissions: int) -> int:
        """The permissions after this overwrite."""
        return permissions & ~self.deny | self.allow


_NOTHING: Final = Overwrite()


@dataclass(frozen=True, slots=True)
class Guild:
    """A guild: its owner, and the permissions of each role; @everyone has the guild's id."""

    id: str
    owner_id: str
    roles: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GuildMember:
    """A member of a guild; `silenced_until` ends a time-out, in seconds since the epoch."""

    user_id: str
    roles: tuple[str, ...] = ()
    silenced_until: float = 0.0


@dataclass(frozen=True, slots=True)
class GuildChannel:
    """A channel or thread; a thread has its parent's overwrites, not its own."""

    id: str
    kind: int
    guild_id: str
    parent_id: str | None = None
    role_overwrites: Mapping[str, Overwrite] = field(default_factory=dict)
    member_overwrites: Mapping[str, Overwrite] = field(default_factory=dict)

    @property
    def is_thread(self) -> bool:
        """Whether it is a thread."""
        return self.kind in THREADS


def guild_permissions(member: GuildMember, guild: Guild) -> int:
    """The permissions of a member in a guild, before any channel's overwrites."""
    if member.user_id == guild.owner_id:
        return ALL
    permissions = guild.roles.get(guild.id, 0)
    for role in member.roles:
        permissions |= guild.roles.get(role, 0)
    return ALL if permissions & Permission.ADMINISTRATOR else permissions


def channel_permissions(
    member: GuildMember, guild: Guild, channel: GuildChannel, now: float
) -> int:
    """The permissions of a member in a channel that is no thread."""
    permissions = guild_permissions(member, guild)
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
        return 0  # without CONNECT, the text chat of a voice channel is hidden, too
    return permissions & _QUIET if now < member.silenced_until else permissions


def thread_permissions(
    member: GuildMember,
    guild: Guild,
    thread: GuildChannel,
    parent: GuildChannel,
    *,
    joined: bool,
    now: float,
) -> int:
    """The permissions of a member in a thread; a private one is open to those who `joined`."""
    permissions = channel_permissions(member, guild, parent, now)
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


def read_member(user_id: str, value: Any) -> GuildMember | None:
    """A member as the API describes it."""
    match value:
        case {"roles": list(roles)} if all(isinstance(role, str) for role in roles):
            until = value.get("communication_disabled_until")
            if until is None:
                return GuildMember(user_id, tuple(roles))
            seconds = parse_time(until)
            return None if seconds is None else GuildMember(user_id, tuple(roles), seconds)
        case _:
            return None


def read_channel(value: Any) -> GuildChannel | None:
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
    return GuildChannel(channel_id, kind, guild_id, parent_id, roles, members)


def hidden_channels(described: Mapping[str, Any], user_id: str, now: float) -> frozenset[str]:
    """The channels that a member surely cannot see, by a GUILD_CREATE."""
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
    return frozenset(each.id for each in known if not channel_permissions(member, guild, each, now))


def parse_time(value: Any) -> float | None:
    """Seconds since the epoch of an ISO 8601 time; None if it is none."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        return None


def _bits(value: Any) -> int | None:
    """A permission set, which the API writes as a decimal string."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NUMBER:
        return None
    return int(value) if value.isascii() and value.isdecimal() else None


def is_snowflake(value: Any) -> TypeGuard[str]:
    """Whether a value is an id as the API writes them."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= _LONGEST_ID
        and value.isascii()
        and value.isdecimal()
    )


def snowflake_before(seconds: float) -> int:
    """The greatest id below all those made at a time, in seconds since the epoch."""
    return max(0, ((int(seconds * 1000) - _EPOCH_MS) << 22) - 1)


@dataclass(frozen=True, slots=True)
class DiscordChat:
    """A channel, thread or direct chat."""

    id: str
    kind: int  # Discord's channel type
    guild_id: str | None = None
    parent_id: str | None = None  # of a thread, the channel that it is in
    name: str | None = None
    topic: str | None = None
    latest: int = 0  # the id of its last message, when it was described

    @property
    def chat_type(self) -> str:
        """Its type on the relay's wire."""
        if self.guild_id is None:
            return "dm"
        return "thread" if self.kind in THREADS else "group"


def read_chat(value: Any, guild_id: str | None = None) -> DiscordChat | None:
    """A channel as the API describes it; None if it is malformed."""
    match value:
        case {"id": place_id, "type": int(kind)} if is_snowflake(place_id):
            pass
        case _:
            return None
    around = value.get("guild_id") or guild_id
    if not (is_snowflake(around) or (around is None and kind in DIRECT_CHATS)):
        return None
    parent, latest = value.get("parent_id"), value.get("last_message_id")
    is_thread = kind in THREADS
    if is_thread and not is_snowflake(parent):
        return None
    return DiscordChat(
        place_id,
        kind,
        around,
        parent if is_thread else None,
        _text(value.get("name")),
        _text(value.get("topic")),
        int(latest) if is_snowflake(latest) else 0,
    )


class ChatCache:
    """The known channels; of too many, those that were used last."""

    def __init__(self) -> None:
        self._known: LRUCache[str, DiscordChat] = LRUCache(_MAX_CHATS)

    def get(self, place_id: str) -> DiscordChat | None:
        """A channel, if it is known."""
        return self._known.get(place_id)

    def put(self, place: DiscordChat) -> None:
        """Add a channel, or replace it."""
        self._known[place.id] = place

    def drop(self, place_id: Any) -> None:
        """Remove a channel."""
        if isinstance(place_id, str):
            self._known.pop(place_id, None)

    def clear(self) -> None:
        """Remove all."""
        self._known.clear()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
