"""Users and bots: inviting, joining, coming back, leaving. Units of work only.

Invites, login keys and session cookies are 256 random bits each and are looked up by their SHA-256
digest, which is all that is kept: nobody can get nearer to one by measuring time.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat.changes import Change, Kind
from accord.relay.platforms.webchat.tables import (
    accounts,
    invites,
    members,
    permissions,
    sessions,
    spaces,
)
from accord.relay.platforms.webchat.words import name_key

_MOST_SESSIONS: Final = 20
_USER_OF: Final = (
    select(accounts.c.id, accounts.c.name)
    .join(sessions, sessions.c.user_id == accounts.c.id)
    .where(
        sessions.c.digest == bindparam("digest"),
        sessions.c.expires_at > bindparam("now"),
        accounts.c.removed_at.is_(None),
    )
)


@dataclass(frozen=True, slots=True)
class Account:
    """A user or a bot."""

    id: str
    name: str


def digest(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def invite(change: Change, secret: str, space_id: str, is_manager: bool, until: int) -> None:
    """Let whoever has the secret join a space, once.

    Raises:
        RelayError: There is no such space.
    """
    known = select(spaces.c.id).where(spaces.c.id == space_id)
    if change.connection.execute(known).first() is None:
        raise RelayError(Code.NOT_FOUND, "there is no such space", where="space_id")
    change.connection.execute(delete(invites).where(invites.c.expires_at <= change.now))
    change.connection.execute(
        insert(invites).values(
            digest=digest(secret), space_id=space_id, is_manager=is_manager, expires_at=until
        )
    )
    change.note("space.invited", space=space_id, manager=int(is_manager), until=until)


def accept(change: Change, secret: str, user_id: str) -> None:
    """Spend an invite: the user belongs to its space.

    Raises:
        RelayError: The invite is unknown, spent or expired.
    """
    row = change.connection.execute(
        delete(invites).where(invites.c.digest == digest(secret)).returning(invites)
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
    change.tell(Kind.ACCESS, row.space_id, user_id)
    change.note("space.joined", f"webchat user {user_id}", space=row.space_id)


def create(change: Change, account: Account, login_key: str | None) -> None:
    """Make an account: a bot where there is no login key.

    Raises:
        RelayError: The name is taken.
    """
    key = name_key(account.name)
    taken = select(accounts.c.id).where(accounts.c.name_key == key)
    if change.connection.execute(taken).first() is not None:
        raise RelayError(
            Code.CONFLICT, "this name is taken", where="/name", mend="choose another name"
        )
    change.connection.execute(
        insert(accounts).values(
            id=account.id,
            is_bot=login_key is None,
            name=account.name,
            name_key=key,
            login_digest=None if login_key is None else digest(login_key),
            created_at=change.now,
        )
    )
    if login_key is None:
        change.note("bot.made", account=account.id, name=account.name)


def by_login_key(connection: Connection, login_key: str) -> Account:
    """Who comes back with a key.

    Raises:
        RelayError: Nobody does.
    """
    row = connection.execute(
        select(accounts.c.id, accounts.c.name).where(
            accounts.c.login_digest == digest(login_key), accounts.c.removed_at.is_(None)
        )
    ).first()
    if row is None:
        raise RelayError(Code.UNAUTHORIZED, "this key is not known")
    return Account(*row)


def set_login_key(change: Change, user_id: str, login_key: str) -> None:
    """Let a user come back with another key.

    Raises:
        RelayError: There is no such user.
    """
    given = change.connection.execute(
        update(accounts)
        .where(
            accounts.c.id == user_id,
            accounts.c.is_bot.is_(False),
            accounts.c.removed_at.is_(None),
        )
        .values(login_digest=digest(login_key))
    )
    if not given.rowcount:
        raise _no_user()
    change.note("user.rekeyed", account=user_id)


def begin_session(change: Change, secret: str, user_id: str, until: int) -> None:
    """Let a browser that shows the secret be the user; the oldest of too many sessions ends."""
    mine = sessions.c.user_id == user_id
    change.connection.execute(delete(sessions).where(sessions.c.expires_at <= change.now))
    kept = (
        change.connection.execute(
            select(sessions.c.digest).where(mine).order_by(sessions.c.expires_at.desc())
        )
        .scalars()
        .all()
    )
    for old in kept[_MOST_SESSIONS - 1 :]:
        change.connection.execute(delete(sessions).where(sessions.c.digest == old))
    change.connection.execute(
        insert(sessions).values(digest=digest(secret), user_id=user_id, expires_at=until)
    )


def end_session(change: Change, secret: str) -> None:
    """Let the secret be good for nothing."""
    change.connection.execute(delete(sessions).where(sessions.c.digest == digest(secret)))


def user_of(connection: Connection, secret: str, now: int) -> Account | None:
    """Whose session a secret is."""
    row = connection.execute(_USER_OF, {"digest": digest(secret), "now": now}).first()
    return None if row is None else Account(*row)


def remove(change: Change, user_id: str) -> None:
    """Take a user's access away; what was written stays.

    Raises:
        RelayError: There is no such user.
    """
    gone = change.connection.execute(
        update(accounts)
        .where(accounts.c.id == user_id, accounts.c.is_bot.is_(False))
        .values(removed_at=change.now, login_digest=None)
    )
    if not gone.rowcount:
        raise _no_user()
    change.note("user.removed", account=user_id)
    change.connection.execute(delete(sessions).where(sessions.c.user_id == user_id))
    change.connection.execute(delete(permissions).where(permissions.c.user_id == user_id))
    left = change.connection.execute(
        delete(members).where(members.c.user_id == user_id).returning(members.c.space_id)
    )
    for space_id in left.scalars().all():
        change.tell(Kind.ACCESS, space_id, user_id)


def bots(connection: Connection) -> list[Account]:
    """Every bot, the oldest first."""
    rows = connection.execute(
        select(accounts.c.id, accounts.c.name)
        .where(accounts.c.is_bot.is_(True))
        .order_by(accounts.c.created_at, accounts.c.id)
    )
    return [Account(*row) for row in rows]


def _no_user() -> RelayError:
    return RelayError(Code.NOT_FOUND, "there is no such user", where="user_id")
