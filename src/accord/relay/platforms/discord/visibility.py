"""What people can see and manage on Discord.

Guilds and channels are cached for some seconds, members are fetched each time. What cannot be
found out is None; a channel or member that does not exist is False.
"""

from collections import OrderedDict
from typing import Any, Final, TypeVar

from accord.kernel.clock import Clock
from accord.relay.errors import RelayError
from accord.relay.platforms.discord.api import DiscordApi
from accord.relay.platforms.discord.rules import permissions
from accord.relay.platforms.discord.rules.permissions import (
    DIRECT_CHATS,
    PRIVATE_THREAD,
    Permission,
    is_snowflake,
)

T = TypeVar("T")

_SECONDS: Final = 10.0
_MOST: Final = 5_000
_PATIENCE: Final = 2.0


class _UnknownError(Exception):
    """The answer says nothing about it."""


class _AbsentError(Exception):
    """The API answered 404."""


class PermissionLookup:
    """Looks up permissions."""

    def __init__(self, rest: DiscordApi, clock: Clock) -> None:
        self._rest = rest
        self._clock = clock
        self._facts: OrderedDict[tuple[str, str], tuple[float, Any]] = OrderedDict()
        self._changes = 0

    def forget(self) -> None:
        """Clear the cache."""
        self._facts.clear()
        self._changes += 1

    async def allowed(
        self, user_id: str, scope_id: str | None, channel_id: str, wanted: Permission
    ) -> bool | None:
        """Whether a user has a permission in a channel; None if that is unknown."""
        if not is_snowflake(user_id) or not is_snowflake(channel_id):
            return False
        try:
            return await self._allowed(user_id, scope_id, channel_id, wanted)
        except _AbsentError:
            return False
        except (_UnknownError, RelayError):
            return None

    async def _allowed(
        self, user_id: str, scope_id: str | None, channel_id: str, wanted: Permission
    ) -> bool:
        described = await self._fact("/channels/{}", channel_id)
        match described:
            case {"type": int(kind)} if kind in DIRECT_CHATS:
                is_theirs = scope_id is None and _takes_part(described, user_id)
                return is_theirs and wanted is Permission.VIEW_CHANNEL
        channel = _known(permissions.read_channel(described))
        if channel.guild_id != scope_id:
            return False
        guild = _known(permissions.read_guild(await self._fact("/guilds/{}", channel.guild_id)))
        found = await self._ask("/guilds/{}/members/{}", guild.id, user_id)
        member = _known(permissions.read_member(user_id, found))
        now = self._clock.now()
        if not channel.is_thread:
            return bool(permissions.channel_permissions(member, guild, channel, now) & wanted)
        parent_id = channel.parent_id
        if not is_snowflake(parent_id):
            raise _UnknownError
        parent = _known(permissions.read_channel(await self._fact("/channels/{}", parent_id)))
        joined = channel.kind == PRIVATE_THREAD and await self._joined(channel_id, user_id)
        permitted = permissions.thread_permissions(
            member, guild, channel, parent, joined=joined, now=now
        )
        return bool(permitted & wanted)

    async def _joined(self, thread_id: str, user_id: str) -> bool:
        try:
            await self._ask("/channels/{}/thread-members/{}", thread_id, user_id)
        except _AbsentError:
            return False
        return True

    async def _fact(self, template: str, subject: str) -> Any:
        """An object of the API, at most some seconds old."""
        key, now = (template, subject), self._clock.monotonic()
        known = self._facts.get(key)
        if known is not None and now < known[0]:
            return known[1]
        changes = self._changes
        value = await self._ask(template, subject)
        if changes != self._changes:
            return value  # it may be older than a change that came meanwhile
        self._facts[key] = now + _SECONDS, value
        self._facts.move_to_end(key)
        while len(self._facts) > _MOST:
            self._facts.popitem(last=False)
        return value

    async def _ask(self, template: str, *parameters: str) -> Any:
        answer = await self._rest.get(template, *parameters, patience=_PATIENCE)
        if answer.status == 404:
            raise _AbsentError
        if not answer.ok:
            raise _UnknownError
        return answer.body


def _known(value: T | None) -> T:
    if value is None:
        raise _UnknownError
    return value


def _takes_part(described: dict[str, Any], user_id: str) -> bool:
    people = described.get("recipients")
    return isinstance(people, list) and any(
        isinstance(each, dict) and each.get("id") == user_id for each in people
    )
