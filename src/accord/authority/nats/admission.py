"""Who asks to come in, whether it is really that session, and what a session's grants come to.

Pure decisions of the callout: it reads what a server asks and what a session shows, and says what
follows. It looks up nothing; time comes in as an argument.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeGuard

from accord.authority.errors import AuthorityError, Code
from accord.authority.nats.jwt import decode
from accord.authority.nats.keys import Kind
from accord.contracts import Grants
from accord.contracts.session_proof import connect_message, is_proved
from accord.kernel import base64url, canonical

WINDOW_SECONDS: Final = 30
_MOST_TOKEN: Final = 2048
_MOST_BLOCKERS: Final = 5
_CODES: Final = {code.value: code for code in Code}
_NAME: Final = re.compile(r"([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{22})")
_HASH: Final = re.compile(r"[A-Za-z0-9_-]{43}")

# Who is asked answers in an inbox, whichever, and nowhere else. The server could let it answer on
# the reply subject of each question, but would then let it answer on any subject that a caller
# who is in league with it names.
_ANSWERS: Final = "_INBOX.*.>"


@dataclass(frozen=True, slots=True)
class Question:
    """A server asks whether somebody may come in.

    Attributes:
        server: The server's public key.
        user_key: The key under which the server wants to know the user.
        host: Where the client comes from.
        token: What the client shows.
        expires_at: When the server stops waiting.
    """

    server: str
    user_key: str
    host: str
    token: str | None
    expires_at: float


@dataclass(frozen=True, slots=True)
class Shown:
    """What a session shows when it connects: who it is, and under which contract it comes."""

    key: str
    digest: str
    iat: int
    proof: str


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a session may do on the server.

    Attributes:
        publish: The subjects that it may publish to.
        subscribe: The subjects that it may subscribe to.
    """

    publish: frozenset[str]
    subscribe: frozenset[str]

    @classmethod
    def of(cls, grants: Grants) -> Self:
        """What grants come to; one who handles nothing has nobody to answer."""
        handles = any(
            reason.rule.startswith("own.")
            for reasons in grants.subscribe.values()
            for reason in reasons
        )
        answers = {_ANSWERS} if handles else set()
        return cls(frozenset(grants.publish) | answers, frozenset(grants.subscribe))

    @property
    def fingerprint(self) -> str:
        """A short name of exactly these permissions."""
        whole = {"publish": sorted(self.publish), "subscribe": sorted(self.subscribe)}
        return base64url.encode(hashlib.sha256(canonical.encode(whole)).digest()[:16])

    def covers(self, other: "Permissions") -> bool:
        """Whether these permit everything that the others do."""
        return other.publish <= self.publish and other.subscribe <= self.subscribe


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whom a connection was given to: the name of its user, in parts."""

    key: str
    digest: str
    fingerprint: str

    @property
    def name(self) -> str:
        """As the server shows it in its advisories."""
        return f"{self.key}.{self.digest}.{self.fingerprint}"

    @classmethod
    def from_name(cls, name: object) -> Self | None:
        """Read it; a user that the callout did not name is none."""
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        return None if match is None else cls(*match.groups())


def read_question(token: str) -> Question:
    """Read what a server asks.

    Raises:
        AuthorityError: It is malformed, or not signed by the server that it names.
    """
    claims = decode(token, Kind.SERVER)
    nats = claims.get("nats")
    server, client, shown = (
        _object(nats, member) for member in ("server_id", "client_info", "connect_opts")
    )
    user_key = nats.get("user_nkey") if isinstance(nats, dict) else None
    if server.get("id") != claims["iss"] or not isinstance(user_key, str):
        raise AuthorityError(Code.BAD_REQUEST, "the server's question does not name it and a user")
    auth_token, host, ends = shown.get("auth_token"), client.get("host"), claims.get("exp")
    return Question(
        claims["iss"],
        user_key,
        host if isinstance(host, str) else "",
        auth_token if isinstance(auth_token, str) else None,
        float(ends) if isinstance(ends, int | float) else float("inf"),
    )


def read_token(token: str | None, now: float) -> Shown:
    """Read what a session shows, and prove that the session itself says so, now.

    Raises:
        AuthorityError: `bad_request`, `expired_proof` or `invalid_proof`.
    """
    if token is None or len(token) > _MOST_TOKEN:
        raise AuthorityError(
            Code.BAD_REQUEST, "no connect token is shown", mend="bootstrap first, then show one"
        )
    try:
        members = canonical.decode(token.encode())
    except (canonical.CanonicalError, UnicodeEncodeError):
        members = None
    if not isinstance(members, dict) or members.get("v") != 1:
        raise AuthorityError(Code.BAD_REQUEST, "the connect token is not one of version 1")
    key, digest, iat, proof = (
        members.get(name) for name in ("sessionKey", "contractDigest", "iat", "sig")
    )
    if (
        not _is_hash(key)
        or not _is_hash(digest)
        or not isinstance(proof, str)
        or not isinstance(iat, int)
    ):
        raise AuthorityError(
            Code.BAD_REQUEST, "the connect token lacks a session key, a digest, a time or a proof"
        )
    if abs(now - iat) > WINDOW_SECONDS:
        raise AuthorityError(
            Code.EXPIRED_PROOF,
            f"the connect token is {abs(now - iat):.0f} s away from now",
            mend="set the clock of the machine, and sign anew for every connection",
        )
    if not is_proved(key, connect_message(digest, iat), proof):
        raise AuthorityError(
            Code.INVALID_PROOF, "the connect token is not signed by the session that it names"
        )
    return Shown(key, digest, iat, proof)


def refusal(grants: Grants) -> AuthorityError:
    """Why a session with these blockers is not let in: the code of the first that names one."""
    codes = (_CODES[blocker.rule] for blocker in grants.blockers if blocker.rule in _CODES)
    return AuthorityError(
        next(codes, Code.FORBIDDEN),
        "; ".join(blocker.message for blocker in grants.blockers[:_MOST_BLOCKERS]),
        findings=grants.blockers,
    )


def _is_hash(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _object(value: object, member: str) -> Mapping[str, Any]:
    found = value.get(member) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}
