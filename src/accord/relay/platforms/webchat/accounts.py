"""Accounts of users and bots: invites, login keys and browser sessions.

Invites, login keys and session cookies are 256 random bits each; only their SHA-256 digests are
stored. The functions are units of work and raise RelayError for what they cannot find.
"""

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from accord.kernel.identifiers import UlidSource
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.settings import WebChatSettings
from accord.relay.platforms.webchat.feed import Change, Changes, FeedKind
from accord.relay.platforms.webchat.rules import look_key, name_key, person_name
from accord.relay.platforms.webchat.tables import (
    accounts,
    invites,
    members,
    permissions,
    sessions,
    spaces,
)

_ID_DIGITS: Final = 16
_USER_OF: Final = (
    select(accounts.c.id, accounts.c.name)
    .join(sessions, sessions.c.user_id == accounts.c.id)
    .where(
        sessions.c.digest == bindparam("digest"),
        sessions.c.expires_at > bindparam("now"),
        accounts.c.removed_at.is_(None),
    )
)
_LONGEST_SESSION = 200


@dataclass(frozen=True, slots=True)
class Account:
    """A user or a bot."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class PendingInvite:
    """An unused invite; `expires_at` in milliseconds. Its `id` withdraws it; nobody joins by it."""

    id: str
    space_id: str
    is_manager: bool
    expires_at: int


def secret_digest(secret: str) -> str:
    """The digest of a secret, which is all that is stored of it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def create_invite(change: Change, secret: str, space_id: str, is_manager: bool, until: int) -> None:
    """Create an invite to a space, for one use."""
    known = select(spaces.c.id).where(spaces.c.id == space_id)
    if change.connection.execute(known).first() is None:
        raise RelayError(Code.NOT_FOUND, "there is no such space", where="space_id")
    change.connection.execute(delete(invites).where(invites.c.expires_at <= change.now))
    change.connection.execute(
        insert(invites).values(
            digest=secret_digest(secret), space_id=space_id, is_manager=is_manager, expires_at=until
        )
    )
    change.add_journal("space.invited", space=space_id, manager=int(is_manager), until=until)


def pending_invites(connection: Connection, now: int) -> list[PendingInvite]:
    """The unused invites, those that expire first, first."""
    rows = connection.execute(
        select(invites).where(invites.c.expires_at > now).order_by(invites.c.expires_at)
    )
    return [
        PendingInvite(row.digest[:_ID_DIGITS], row.space_id, bool(row.is_manager), row.expires_at)
        for row in rows
    ]


def withdraw_invite(change: Change, invite_id: str) -> None:
    """Delete an unused invite."""
    gone = None
    if len(invite_id) == _ID_DIGITS and invite_id.isascii() and invite_id.isalnum():
        this = invites.c.digest.startswith(invite_id)
        gone = change.connection.execute(delete(invites).where(this).returning(invites)).first()
    if gone is None:
        raise RelayError(
            Code.NOT_FOUND,
            "there is no such invitation, or it was used",
            mend="`accord relay chat list` lists those that can still be used",
        )
    change.add_journal("space.uninvited", space=gone.space_id)


def accept_invite(change: Change, secret: str, user_id: str) -> None:
    """Spend an invite: the user becomes a member of its space."""
    row = change.connection.execute(
        delete(invites).where(invites.c.digest == secret_digest(secret)).returning(invites)
    ).first()
    if row is None or row.expires_at <= change.now:
        raise RelayError(
            Code.FORBIDDEN,
            "this invitation was used, has expired or never existed",
            mend="ask for a new one",
        )
    mine = members.c.user_id == user_id, members.c.space_id == row.space_id
    known = change.connection.execute(select(members.c.is_manager).where(*mine)).scalar()
    if known is None:
        change.connection.execute(
            insert(members).values(
                user_id=user_id, space_id=row.space_id, is_manager=row.is_manager
            )
        )
    elif row.is_manager and not known:
        change.connection.execute(update(members).where(*mine).values(is_manager=True))
    change.add_entry(FeedKind.ACCESS, row.space_id, user_id)
    change.add_journal("space.joined", f"webchat user {user_id}", space=row.space_id)


def create_account(change: Change, account: Account, login_key: str | None) -> None:
    """Create an account, without a login key a bot; raises RelayError if the name is taken."""
    key, look = name_key(account.name), look_key(account.name)
    taken = select(accounts.c.id).where(accounts.c.name_key == key)
    if change.connection.execute(taken).first() is not None:
        raise _not_free("this name is taken")
    if _looks_like_another(change.connection, look, is_person=login_key is not None):
        raise _not_free("this name looks like one that is taken")
    change.connection.execute(
        insert(accounts).values(
            id=account.id,
            is_bot=login_key is None,
            name=account.name,
            name_key=key,
            look_key=look,
            login_digest=None if login_key is None else secret_digest(login_key),
            created_at=change.now,
        )
    )
    if login_key is None:
        change.add_journal("bot.made", account=account.id, name=account.name)


def find_by_login_key(connection: Connection, login_key: str) -> Account:
    """The user of a login key."""
    row = connection.execute(
        select(accounts.c.id, accounts.c.name).where(
            accounts.c.login_digest == secret_digest(login_key), accounts.c.removed_at.is_(None)
        )
    ).first()
    if row is None:
        raise RelayError(Code.UNAUTHORIZED, "this key is not known")
    return Account(*row)


def set_login_key(change: Change, user_id: str, login_key: str) -> None:
    """Replace the login key of a user."""
    given = change.connection.execute(
        update(accounts)
        .where(
            accounts.c.id == user_id,
            accounts.c.is_bot.is_(False),
            accounts.c.removed_at.is_(None),
        )
        .values(login_digest=secret_digest(login_key))
    )
    if not given.rowcount:
        raise _no_user()
    change.add_journal("user.rekeyed", account=user_id)


def begin_session(change: Change, secret: str, user_id: str, until: int, most: int) -> None:
    """Start a session; beyond `most`, the user's oldest session ends."""
    mine = sessions.c.user_id == user_id
    change.connection.execute(delete(sessions).where(sessions.c.expires_at <= change.now))
    kept = (
        change.connection.execute(
            select(sessions.c.digest).where(mine).order_by(sessions.c.expires_at.desc())
        )
        .scalars()
        .all()
    )
    for old in kept[most - 1 :]:
        change.connection.execute(delete(sessions).where(sessions.c.digest == old))
    change.connection.execute(
        insert(sessions).values(digest=secret_digest(secret), user_id=user_id, expires_at=until)
    )


def end_session(change: Change, secret: str) -> None:
    """End the session of a secret."""
    change.connection.execute(delete(sessions).where(sessions.c.digest == secret_digest(secret)))


def session_user(connection: Connection, secret: str, now: int) -> Account | None:
    """The user of a session's secret; None if there is no such session."""
    row = connection.execute(_USER_OF, {"digest": secret_digest(secret), "now": now}).first()
    return None if row is None else Account(*row)


def remove_account(change: Change, user_id: str) -> None:
    """Remove a user's access; their messages stay."""
    gone = change.connection.execute(
        update(accounts)
        .where(accounts.c.id == user_id, accounts.c.is_bot.is_(False))
        .values(removed_at=change.now, login_digest=None)
    )
    if not gone.rowcount:
        raise _no_user()
    change.add_journal("user.removed", account=user_id)
    change.connection.execute(delete(sessions).where(sessions.c.user_id == user_id))
    change.connection.execute(delete(permissions).where(permissions.c.user_id == user_id))
    left = change.connection.execute(
        delete(members).where(members.c.user_id == user_id).returning(members.c.space_id)
    )
    for space_id in left.scalars().all():
        change.add_entry(FeedKind.ACCESS, space_id, user_id)


def list_bots(connection: Connection) -> list[Account]:
    """Every bot, the oldest first."""
    rows = connection.execute(
        select(accounts.c.id, accounts.c.name)
        .where(accounts.c.is_bot.is_(True))
        .order_by(accounts.c.created_at, accounts.c.id)
    )
    return [Account(*row) for row in rows]


def _looks_like_another(connection: Connection, look: str, *, is_person: bool) -> bool:
    """Whether a name is easily confused with an account's or an agent's space."""
    alike = select(accounts.c.id).where(accounts.c.look_key == look)
    if connection.execute(alike).first() is not None:
        return True
    unknown = select(accounts.c.name).where(accounts.c.look_key.is_(None))
    names = list(connection.execute(unknown).scalars())
    if is_person:
        # An agent that is let in on this machine has a space of its name.
        names += connection.execute(select(spaces.c.name)).scalars()
    return any(look_key(name) == look for name in names)


def _not_free(what: str) -> RelayError:
    return RelayError(Code.CONFLICT, what, where="/name", mend="choose another name")


def _no_user() -> RelayError:
    return RelayError(Code.NOT_FOUND, "there is no such user", where="user_id")


@dataclass(frozen=True, slots=True)
class LoginResult:
    """A user who logged in; `login_key` is None unless it was created just now."""

    user: Account
    session: str = field(repr=False)
    login_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Login:
    """Logs users in and out; raises RelayError for invites, names and keys that are not valid."""

    changes: Changes
    ids: UlidSource
    settings: WebChatSettings

    async def join(self, invite: str, name: object) -> LoginResult:
        """Spend an invite and create its user."""
        user = Account(self.ids.new(), person_name(name))
        session, login_key = _new_secret(), _new_secret()
        until, most = self._until(), self.settings.sessions_per_user

        def work(change: Change) -> None:
            create_account(change, user, login_key)
            accept_invite(change, invite, user.id)
            begin_session(change, session, user.id, until, most)

        await self.changes.change(work)
        return LoginResult(user, session, login_key)

    async def join_more(self, invite: str, user: Account) -> None:
        """Spend an invite: the user becomes a member of one more space."""
        await self.changes.change(lambda change: accept_invite(change, invite, user.id))

    async def log_in(self, login_key: str) -> LoginResult:
        """Start a session by a login key."""
        session, until = _new_secret(), self._until()
        most = self.settings.sessions_per_user

        def work(change: Change) -> Account:
            user = find_by_login_key(change.connection, login_key)
            begin_session(change, session, user.id, until, most)
            return user

        return LoginResult(await self.changes.change(work), session)

    async def log_out(self, session: str) -> None:
        """End a session."""
        await self.changes.change(lambda change: end_session(change, session))

    async def user_of(self, session: str | None) -> Account | None:
        """The user of a session; None if there is no such session."""
        if not session or len(session) > _LONGEST_SESSION:
            return None
        now = self.changes.now()
        return await self.changes.read(lambda c: session_user(c, session, now))

    def _until(self) -> int:
        return self.changes.now() + self.settings.session_seconds * 1000


def _new_secret() -> str:
    return secrets.token_urlsafe(32)
