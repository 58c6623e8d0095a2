"""Everything that exists, and who may do what where.

`World` owns ids and the order of events and knows no socket: the gateway listens. Permissions are
the service's documented computation.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntFlag
from typing import TYPE_CHECKING, Any

from accord.kernel.clock import Clock

if TYPE_CHECKING:
    from tests.fakes.discord.channels import Channel
    from tests.fakes.discord.guilds import Guild
    from tests.fakes.discord.people import User


class Permission(IntFlag):
    """The bits that matter to a bot that talks."""

    NONE = 0
    ADMINISTRATOR = 1 << 3
    MANAGE_CHANNELS = 1 << 4
    MANAGE_GUILD = 1 << 5
    ADD_REACTIONS = 1 << 6
    VIEW_CHANNEL = 1 << 10
    SEND_MESSAGES = 1 << 11
    MANAGE_MESSAGES = 1 << 13
    EMBED_LINKS = 1 << 14
    ATTACH_FILES = 1 << 15
    READ_MESSAGE_HISTORY = 1 << 16
    MENTION_EVERYONE = 1 << 17
    MANAGE_ROLES = 1 << 28
    USE_APPLICATION_COMMANDS = 1 << 31
    MANAGE_THREADS = 1 << 34
    CREATE_PUBLIC_THREADS = 1 << 35
    CREATE_PRIVATE_THREADS = 1 << 36
    SEND_MESSAGES_IN_THREADS = 1 << 38


ALL = Permission((1 << 51) - 1)
"""What owners and administrators have, bits that are not named here included."""

EVERYONE = (
    Permission.VIEW_CHANNEL
    | Permission.SEND_MESSAGES
    | Permission.EMBED_LINKS
    | Permission.ATTACH_FILES
    | Permission.READ_MESSAGE_HISTORY
    | Permission.USE_APPLICATION_COMMANDS
    | Permission.CREATE_PUBLIC_THREADS
    | Permission.CREATE_PRIVATE_THREADS
    | Permission.SEND_MESSAGES_IN_THREADS
)
"""What the role @everyone of a new guild has here."""

DIRECT = EVERYONE | Permission.ADD_REACTIONS
"""What both sides of a direct message have."""

_TIMED_OUT = Permission.VIEW_CHANNEL | Permission.READ_MESSAGE_HISTORY


def guild_permissions(guild: "Guild", user_id: str) -> Permission:
    """What a user has in a guild before any channel is looked at; nothing for a stranger."""
    member = guild.members.get(user_id)
    if member is None:
        return Permission.NONE
    if guild.owner_id == user_id:
        return ALL
    found = guild.everyone.permissions
    for role in member.roles:
        found |= role.permissions
    return ALL if Permission.ADMINISTRATOR in found else found


def channel_permissions(channel: "Channel", user_id: str) -> Permission:
    """What a user has in a channel; a thread asks its parent, a timed out member has little."""
    guild = channel.guild
    if guild is None:
        return DIRECT if user_id in channel.recipients else Permission.NONE
    found = guild_permissions(guild, user_id)
    if Permission.ADMINISTRATOR in found or user_id not in guild.members:
        return found
    member = guild.members[user_id]
    overwrites = (channel.parent if channel.is_thread and channel.parent else channel).overwrites
    if everyone := overwrites.get(guild.id):
        found = found & ~everyone.deny | everyone.allow
    of_roles = [overwrites[role.id] for role in member.roles if role.id in overwrites]
    for overwrite in of_roles:
        found &= ~overwrite.deny
    for overwrite in of_roles:
        found |= overwrite.allow
    if own := overwrites.get(user_id):
        found = found & ~own.deny | own.allow
    return found & _TIMED_OUT if member.is_timed_out else found


def may_view(channel: "Channel", user_id: str) -> bool:
    """Whether a user sees a channel; a private thread is for those in it and its stewards."""
    found = channel_permissions(channel, user_id)
    if Permission.VIEW_CHANNEL not in found:
        return False
    return (
        not channel.is_private_thread
        or user_id in channel.thread_members
        or Permission.MANAGE_THREADS in found
    )


def may_write(channel: "Channel", user_id: str) -> bool:
    """Whether a user may write in a channel."""
    needed = Permission.SEND_MESSAGES_IN_THREADS if channel.is_thread else Permission.SEND_MESSAGES
    return may_view(channel, user_id) and needed in channel_permissions(channel, user_id)


_EPOCH_MILLIS = 1_420_070_400_000  # the first second of 2015, from which snowflakes count

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened, as a gateway event before any session's intents are asked.

    Attributes:
        channel: Where; only a bot that sees it is told.
        about: The user whom it concerns, where the rules depend on that.
    """

    name: str
    data: Json
    guild: "Guild | None" = None
    channel: "Channel | None" = None
    about: str | None = None


class World:
    """Guilds, channels and people.

    Args:
        clock: Where snowflakes and timestamps come from.
        seed: Where session ids, tokens and keys come from.
    """

    def __init__(self, clock: Clock, seed: int) -> None:
        self.clock = clock
        self.chance = random.Random(seed)
        self.users: dict[str, User] = {}
        self.guilds: dict[str, Guild] = {}
        self.channels: dict[str, Channel] = {}
        self.listeners: list[Callable[[News], None]] = []
        self.bot_id = ""
        self._last_id = 0

    @property
    def bot(self) -> "User":
        """The bot under test."""
        return self.users[self.bot_id]

    def new_id(self) -> str:
        """The next snowflake: later ones are greater, even while the clock stands still."""
        millis = int(self.clock.now() * 1000) - _EPOCH_MILLIS
        self._last_id = max(self._last_id + 1, millis << 22)
        return str(self._last_id)

    def timestamp(self, after: float = 0.0) -> str:
        """The time now, or some seconds later, as the service writes it."""
        return datetime.fromtimestamp(self.clock.now() + after, UTC).isoformat(
            timespec="microseconds"
        )

    def secret(self, size: int = 16) -> str:
        """A new opaque text."""
        return self.chance.randbytes(size).hex()

    def tell(self, news: News) -> None:
        """Let whoever listens know."""
        for listener in self.listeners:
            listener(news)
