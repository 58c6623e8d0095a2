"""Operators' actions, for the command line and the station."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sqlalchemy import Connection, select

from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.settings import WebChatSettings
from accord.relay.platforms.webchat import accounts, chats
from accord.relay.platforms.webchat.accounts import Account, PendingInvite
from accord.relay.platforms.webchat.chats import ChatKind, Level
from accord.relay.platforms.webchat.feed import OPERATOR, Change, Changes, FeedKind
from accord.relay.platforms.webchat.rules import account_name, channel_name, name_key
from accord.relay.platforms.webchat.tables import accounts as account_table
from accord.relay.platforms.webchat.tables import chats as chat_table
from accord.relay.platforms.webchat.tables import members, permissions
from accord.relay.platforms.webchat.tables import spaces as space_table

T = TypeVar("T")

CHAT_PATH: Final = "/chat"
"""Below which the web chat is served."""


@dataclass(frozen=True, slots=True)
class Invite:
    """An invite link; `expires_at` in milliseconds.

    The secret is behind a `#`: browsers do not send that part, so it is in no log.
    """

    expires_at: int
    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Space:
    """A space; to the relay it is a scope."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel, with the permissions that differ from its kind's default."""

    id: str
    space_id: str
    name: str
    is_private: bool
    permissions: dict[str, Level] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class User:
    """A user and their spaces."""

    id: str
    name: str
    spaces: tuple[str, ...]
    is_removed: bool


class Admin:
    """What operators can do; it takes effect at once in every process."""

    def __init__(
        self, changes: Changes, clock: Clock, settings: WebChatSettings, by: str = OPERATOR
    ) -> None:
        self._changes = changes
        self._clock = clock
        self._ids = UlidSource(clock)
        self._settings = settings
        self._by = by

    def acting_as(self, by: str) -> "Admin":
        """The same, with another actor in the journal."""
        return Admin(self._changes, self._clock, self._settings, by)

    async def create_space(self, name: str) -> Space:
        """Create a space."""
        space = Space(self._ids.new(), account_name(name))
        await self._change(lambda change: chats.create_space(change, space.id, space.name))
        return space

    async def create_channel(self, space_id: str, name: str, *, private: bool = False) -> Channel:
        """Create a channel in a space."""
        channel = Channel(self._ids.new(), space_id, channel_name(name), private)
        await self._change(
            lambda change: chats.create_channel(
                change, channel.id, space_id, channel.name, is_private=private
            )
        )
        return channel

    async def set_permission(self, chat_id: str, user_id: str, level: Level | None) -> None:
        """Set what a user may do in a channel; None for its kind's default."""
        await self._change(lambda change: chats.set_permission(change, chat_id, user_id, level))

    async def invite(
        self, space_id: str, *, manager: bool = False, seconds: int | None = None
    ) -> Invite:
        """Create an invite link to a space, for one use."""
        seconds = self._settings.invite_seconds if seconds is None else seconds
        if not 0 < seconds <= 365 * 86_400:
            raise RelayError(Code.BAD_REQUEST, "an invitation is valid for 1 second to 1 year")
        secret = secrets.token_urlsafe(32)
        until = self._changes.now() + seconds * 1000
        await self._change(
            lambda change: accounts.create_invite(change, secret, space_id, manager, until)
        )
        return Invite(until, f"{self._settings.base_url.rstrip('/')}{CHAT_PATH}/#invite={secret}")

    async def pending(self) -> Sequence[PendingInvite]:
        """The unused invites."""
        now = self._changes.now()
        return await self._changes.read(
            lambda connection: accounts.pending_invites(connection, now)
        )

    async def withdraw(self, invite_id: str) -> None:
        """Delete an unused invite by its id; see `pending`."""
        await self._change(lambda change: accounts.withdraw_invite(change, invite_id))

    async def new_login_key(self, user_id: str) -> str:
        """Replace a user's lost login key."""
        key = secrets.token_urlsafe(32)
        await self._change(lambda change: accounts.set_login_key(change, user_id, key))
        return key

    async def remove_user(self, user_id: str) -> None:
        """Remove a user's access; their messages stay."""
        await self._change(lambda change: accounts.remove_account(change, user_id))

    async def make_bot(self, name: str) -> Account:
        """The bot of this name, created if there is none; running processes serve it at once."""
        made = Account(self._ids.new(), account_name(name))

        def work(change: Change) -> Account:
            for bot in accounts.list_bots(change.connection):
                if name_key(bot.name) == name_key(made.name):
                    return bot
            accounts.create_account(change, made, None)
            change.add_entry(FeedKind.ACCESS, "", made.id)
            return made

        return await self._change(work)

    async def bots(self) -> Sequence[Account]:
        """Every bot, the oldest first."""
        return await self._changes.read(accounts.list_bots)

    async def spaces(self) -> Sequence[Space]:
        """Every space."""
        rows = select(space_table.c.id, space_table.c.name).order_by(space_table.c.name)
        return await self._changes.read(lambda c: [Space(*row) for row in c.execute(rows)])

    async def channels(self, space_id: str | None = None) -> Sequence[Channel]:
        """Every channel, or those of a space."""
        wanted = (
            select(chat_table)
            .where(chat_table.c.kind == ChatKind.CHANNEL)
            .order_by(chat_table.c.space_id, chat_table.c.name)
        )
        if space_id is not None:
            wanted = wanted.where(chat_table.c.space_id == space_id)

        def work(connection: Connection) -> list[Channel]:
            given: dict[str, dict[str, Level]] = {}
            for row in connection.execute(select(permissions)):
                given.setdefault(row.chat_id, {})[row.user_id] = Level(row.level)
            return [
                Channel(row.id, row.space_id, row.name, row.is_private, given.get(row.id, {}))
                for row in connection.execute(wanted)
            ]

        return await self._changes.read(work)

    async def users(self) -> Sequence[User]:
        """Every user, the oldest first."""
        wanted = (
            select(account_table)
            .where(account_table.c.is_bot.is_(False))
            .order_by(account_table.c.created_at, account_table.c.id)
        )

        def work(connection: Connection) -> list[User]:
            held: dict[str, list[str]] = {}
            for row in connection.execute(select(members).order_by(members.c.space_id)):
                held.setdefault(row.user_id, []).append(row.space_id)
            return [
                User(row.id, row.name, tuple(held.get(row.id, ())), row.removed_at is not None)
                for row in connection.execute(wanted)
            ]

        return await self._changes.read(work)

    async def _change(self, work: Callable[[Change], T]) -> T:
        return await self._changes.change(work, by=self._by)
