"""Tokens by which operators manage a connector from another machine.

A token names its row and carries a random secret, of which only a digest is stored. It may be
limited to reading, it always expires, and a revoked one is refused at once: nothing is cached.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from accord.relay.connector.store import ControlChange
from accord.relay.connector.tables import operator_tokens
from accord.relay.errors import Code, RelayError

_PREFIX: Final = "operator"
_FORM: Final = re.compile(r"operator_([0-9a-f]{16})_([A-Za-z0-9_-]{43})", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_LONGEST_SECONDS: Final = 10 * 365 * 86_400
_MOST_LIVE: Final = 1000
# For how long a token that has ended is listed, and told apart from an unknown one.
_REMEMBERED_MS: Final = 7 * 86_400_000
_NOBODY: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class OperatorToken:
    """A token without its secret; times in milliseconds since the epoch."""

    id: str
    name: str
    read_only: bool
    created_at: int
    expires_at: int
    revoked_at: int | None = None

    @property
    def by(self) -> str:
        """Its holder as the journal names it."""
        return f"operator {self.name}"


@dataclass(frozen=True, slots=True)
class MintedOperatorToken:
    """A new token, which is shown once."""

    token: OperatorToken
    secret: str = field(repr=False)


def mint(change: ControlChange, name: str, *, seconds: int, read_only: bool) -> MintedOperatorToken:
    """Make a token for somebody who has no other one that is still good."""
    if not _NAME.fullmatch(name):
        raise RelayError(
            Code.BAD_REQUEST,
            "the name of an operator has up to 64 letters, digits, dots, dashes, _ and @",
            where="name",
        )
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise RelayError(
            Code.BAD_REQUEST, "a token is good for 1 second to 10 years", where="expires"
        )
    drop_ended(change)
    live = [each for each in read(change.connection) if not _has_ended(each, change.now)]
    if any(each.name == name for each in live):
        raise RelayError(
            Code.CONFLICT,
            f"{name} has a token that is still good",
            where="name",
            mend="revoke it first, or choose another name",
        )
    if len(live) >= _MOST_LIVE:
        raise RelayError(
            Code.CONFLICT, f"there are {_MOST_LIVE} tokens already", mend="revoke some"
        )
    token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    made = OperatorToken(token_id, name, read_only, change.now, change.now + seconds * 1000)
    change.connection.execute(
        insert(operator_tokens).values(
            id=made.id,
            name=name,
            digest=_digest(secret),
            read_only=int(read_only),
            created_at=made.created_at,
            expires_at=made.expires_at,
        )
    )
    change.note("operator.added", operator=name, read_only=int(read_only))
    return MintedOperatorToken(made, f"{_PREFIX}_{token_id}_{secret}")


def revoke(change: ControlChange, name: str) -> int:
    """End the tokens of a name at once; how many there were."""
    ended = change.connection.execute(
        update(operator_tokens)
        .where(operator_tokens.c.name == name, operator_tokens.c.revoked_at.is_(None))
        .values(revoked_at=change.now)
    ).rowcount
    if not ended:
        raise RelayError(
            Code.NOT_FOUND,
            f"no operator {name!r} has a token",
            mend="`accord relay operator-token list` shows them",
        )
    change.note("operator.revoked", operator=name)
    return ended


def read(connection: Connection) -> list[OperatorToken]:
    """Every token that is stored, the newest first."""
    names = OperatorToken.__slots__
    query = select(*(operator_tokens.c[name] for name in names))
    rows = connection.execute(query.order_by(operator_tokens.c.created_at.desc())).mappings()
    return [OperatorToken(**{**row, "read_only": bool(row["read_only"])}) for row in rows]


def authenticate(connection: Connection, bearer: str | None, now: int) -> OperatorToken:
    """Whose token it is; every refusal is UNAUTHORIZED."""
    if bearer is None:
        raise _refused("an operator's token is needed", "send it as `Authorization: Bearer`")
    form = _FORM.fullmatch(bearer)
    token_id, secret = form.groups() if form else ("", "")
    row = (
        connection.execute(select(operator_tokens).where(operator_tokens.c.id == token_id))
        .mappings()
        .first()
    )
    # Compared also where there is no such row, so that both take the same time.
    is_right = hmac.compare_digest(_NOBODY if row is None else row["digest"], _digest(secret))
    if row is None or not is_right:
        raise _refused(
            "this is no operator's token of this connector",
            "make one there with `accord relay operator-token new`",
        )
    if row["revoked_at"] is not None:
        raise _refused("this operator's token was revoked", "ask for a new one")
    if row["expires_at"] <= now:
        raise _refused("this operator's token has expired", "ask for a new one")
    return OperatorToken(
        row["id"], row["name"], bool(row["read_only"]), row["created_at"], row["expires_at"]
    )


def drop_ended(change: ControlChange) -> None:
    """Delete tokens that ended a while ago."""
    before = change.now - _REMEMBERED_MS
    is_old = (operator_tokens.c.expires_at <= before) | (operator_tokens.c.revoked_at <= before)
    change.connection.execute(delete(operator_tokens).where(is_old))


def _has_ended(token: OperatorToken, now: int) -> bool:
    return token.revoked_at is not None or token.expires_at <= now


def _digest(secret: str) -> bytes:
    # 256 random bits, so a plain digest cannot be attacked by guessing.
    return hashlib.sha256(secret.encode()).digest()


def _refused(what: str, mend: str) -> RelayError:
    return RelayError(Code.UNAUTHORIZED, what, mend=mend)
