"""Coming in: invitations, login keys and the sessions of browsers.

Owns the making of secrets; what is kept of them are digests.
"""

import secrets
from dataclasses import dataclass, field

from accord.kernel.ulid import UlidSource
from accord.relay.platforms.webchat import accounts
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.changes import Change, Changes
from accord.relay.platforms.webchat.settings import WebChatSettings
from accord.relay.platforms.webchat.words import account_name

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Entry:
    """A user who came in.

    Attributes:
        session: What the browser shows from now on.
        login_key: By which the user comes back; None where it was not made just now.
    """

    user: Account
    session: str = field(repr=False)
    login_key: str | None = field(default=None, repr=False)


class Doors:
    """Lets people in and out."""

    def __init__(self, changes: Changes, ids: UlidSource, settings: WebChatSettings) -> None:
        self._changes = changes
        self._ids = ids
        self._settings = settings

    async def join(self, invite: str, name: object) -> Entry:
        """Spend an invitation: a new user of this name comes in.

        Raises:
            RelayError: The invitation is not good, or the name cannot be had.
        """
        user = Account(self._ids.new(), account_name(name))
        session, login_key = _secret(), _secret()
        until = self._until()

        def work(change: Change) -> None:
            accounts.create(change, user, login_key)
            accounts.accept(change, invite, user.id)
            accounts.begin_session(change, session, user.id, until)

        await self._changes.change(work)
        return Entry(user, session, login_key)

    async def join_more(self, invite: str, user: Account) -> None:
        """Spend an invitation: a user belongs to one more space.

        Raises:
            RelayError: The invitation is not good.
        """
        await self._changes.change(lambda change: accounts.accept(change, invite, user.id))

    async def log_in(self, login_key: str) -> Entry:
        """Come back.

        Raises:
            RelayError: The key is not known.
        """
        session, until = _secret(), self._until()

        def work(change: Change) -> Account:
            user = accounts.by_login_key(change.connection, login_key)
            accounts.begin_session(change, session, user.id, until)
            return user

        return Entry(await self._changes.change(work), session)

    async def log_out(self, session: str) -> None:
        """End a session."""
        await self._changes.change(lambda change: accounts.end_session(change, session))

    async def user_of(self, session: str | None) -> Account | None:
        """Whose session this is."""
        if not session or len(session) > _LONGEST:
            return None
        now = self._changes.now()
        return await self._changes.read(lambda c: accounts.user_of(c, session, now))

    def _until(self) -> int:
        return self._changes.now() + self._settings.session_seconds * 1000


def _secret() -> str:
    return secrets.token_urlsafe(32)
