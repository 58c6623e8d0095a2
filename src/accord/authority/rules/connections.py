"""Connections of sessions: who may connect, with which permissions, and who is connected.

The name of an admitted user carries the fingerprint of its permissions; permissions that were
forgotten are derived again. Connections are read from server advisories and listed in memory.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self, TypeGuard

import orjson
from cachetools import FIFOCache

from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.jwt import KeyType, decode
from accord.contracts import Grants
from accord.contracts.session_proof import connect_message, is_proved
from accord.kernel import canonical
from accord.kernel.clock import TimestampError, parse_time

WINDOW_SECONDS: Final = 30
_MOST_TOKEN: Final = 2048
_MOST_BLOCKERS: Final = 5
_CODES: Final = {code.value: code for code in Code}
_NAME: Final = re.compile(r"([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{22})")
_HASH: Final = re.compile(r"[A-Za-z0-9_-]{43}")

# Responders may publish to any inbox, and nowhere else. The server could allow the reply subject of
# each request instead, but a caller could then name any subject for a responder to publish to.
_ANSWERS: Final = "_INBOX.*.>"


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A server asks whether a client may connect; it waits until `expires_at`."""

    server: str
    user_key: str
    host: str
    token: str | None
    expires_at: float


@dataclass(frozen=True, slots=True)
class ConnectToken:
    """The session key, contract digest and proof that a session connects with."""

    key: str
    digest: str
    iat: int
    proof: str


@dataclass(frozen=True, slots=True)
class NatsPermissions:
    """The subjects that a session may publish and subscribe to."""

    publish: frozenset[str]
    subscribe: frozenset[str]

    @classmethod
    def of(cls, grants: Grants) -> Self:
        """The permissions of grants; only sessions that handle requests may answer."""
        handles = any(
            reason.rule.startswith("own.")
            for reasons in grants.subscribe.values()
            for reason in reasons
        )
        answers = {_ANSWERS} if handles else set()
        return cls(frozenset(grants.publish) | answers, frozenset(grants.subscribe))

    @property
    def fingerprint(self) -> str:
        """A short digest of exactly these permissions."""
        whole = {"publish": sorted(self.publish), "subscribe": sorted(self.subscribe)}
        return canonical.encode_base64url(hashlib.sha256(canonical.encode(whole)).digest()[:16])

    def covers(self, other: "NatsPermissions") -> bool:
        """Whether these include all of the others."""
        return other.publish <= self.publish and other.subscribe <= self.subscribe


@dataclass(frozen=True, slots=True)
class AdmittedUser:
    """The parts of the name of an admitted user."""

    key: str
    digest: str
    fingerprint: str

    @property
    def name(self) -> str:
        """As the server shows it in its advisories."""
        return f"{self.key}.{self.digest}.{self.fingerprint}"

    @classmethod
    def from_name(cls, name: object) -> Self | None:
        """Parse a name; None if the callout did not make it."""
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        return None if match is None else cls(*match.groups())


def read_connect_request(token: str) -> ConnectRequest:
    """Read the request of a server, which it must have signed."""
    claims = decode(token, KeyType.SERVER)
    nats = claims.get("nats")
    server, client, shown = (
        _member(nats, member) for member in ("server_id", "client_info", "connect_opts")
    )
    user_key = nats.get("user_nkey") if isinstance(nats, dict) else None
    if server.get("id") != claims["iss"] or not isinstance(user_key, str):
        raise AuthorityError(
            Code.BAD_REQUEST, "the auth callout request names no server or no user"
        )
    auth_token, host, ends = shown.get("auth_token"), client.get("host"), claims.get("exp")
    return ConnectRequest(
        claims["iss"],
        user_key,
        host if isinstance(host, str) else "",
        auth_token if isinstance(auth_token, str) else None,
        float(ends) if isinstance(ends, int | float) else float("inf"),
    )


def read_connect_token(token: str | None, now: float) -> ConnectToken:
    """Read a connect token and verify its proof and age."""
    if token is None or len(token) > _MOST_TOKEN:
        raise AuthorityError(
            Code.BAD_REQUEST,
            "the client sent no connect token",
            mend="bootstrap first, then send one",
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
    return ConnectToken(key, digest, iat, proof)


def connect_refusal(grants: Grants) -> AuthorityError:
    """The error for a session whose grants are blocked: the first blocker with a code."""
    codes = (_CODES[blocker.rule] for blocker in grants.blockers if blocker.rule in _CODES)
    return AuthorityError(
        next(codes, Code.FORBIDDEN),
        "; ".join(blocker.message for blocker in grants.blockers[:_MOST_BLOCKERS]),
        findings=grants.blockers,
    )


def _is_hash(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _member(value: object, member: str) -> Mapping[str, Any]:
    found = value.get(member) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


_MAX_ISSUED: Final = 20_000


class IssuedPermissions:
    """The latest permissions that were issued, by fingerprint."""

    def __init__(self, most: int = _MAX_ISSUED) -> None:
        self._known: FIFOCache[str, NatsPermissions] = FIFOCache(most)

    def remember(self, permissions: NatsPermissions) -> None:
        """Remember permissions."""
        self._known[permissions.fingerprint] = permissions

    def is_covered(self, fingerprint: str, now: NatsPermissions) -> bool:
        """Whether the permissions of a fingerprint are still within those of now.

        An unknown fingerprint must be exactly that of now.
        """
        if now.fingerprint == fingerprint:
            self.remember(now)
            return True
        given = self._known.get(fingerprint)
        return given is not None and now.covers(given)


PAGE_SIZE: Final = 1024


class ConnectionChange(StrEnum):
    """What happened to a connection."""

    OPENED = "opened"
    CLOSED = "closed"
    KICKED = "kicked"


@dataclass(frozen=True, slots=True)
class SessionConnection:
    """A session's connection; `client` is its number on the server, `since` in seconds."""

    server: str
    client: int
    admitted: AdmittedUser = field(compare=False)
    host: str = field(default="", compare=False)
    since: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ConnectionPage:
    """A page of the connections of one server; `following` is the next offset, if any."""

    server: str
    connections: tuple[SessionConnection, ...]
    following: int | None


def read_advisory(subject: str, data: bytes) -> tuple[ConnectionChange, SessionConnection] | None:
    """Read the advisory of a connection that was opened or closed."""
    change = _CHANGES.get(subject.rpartition(".")[2])
    body = _read(data)
    client = _object(body.get("client"))
    found = _connection(
        _object(body.get("server")).get("id"),
        client.get("id"),
        client.get("user"),
        client.get("host"),
        client.get("start"),
    )
    return None if change is None or found is None else (change, found)


def read_page(data: bytes) -> ConnectionPage | None:
    """Read a server's answer to a request for `CONNZ`."""
    body = _read(data)
    server, listed = _object(body.get("server")).get("id"), _object(body.get("data"))
    entries, offset, total = listed.get("connections"), listed.get("offset"), listed.get("total")
    if not isinstance(server, str) or not isinstance(entries, list):
        return None
    rows = [_object(entry) for entry in entries]
    found = (
        _connection(
            server, row.get("cid"), row.get("authorized_user"), row.get("ip"), row.get("start")
        )
        for row in rows
    )
    end = (offset if isinstance(offset, int) else 0) + len(rows)
    more = bool(rows) and isinstance(total, int) and end < total
    return ConnectionPage(
        server,
        tuple(connection for connection in found if connection is not None),
        end if more else None,
    )


def _connection(
    server: object, client: object, user: object, host: object, start: object
) -> SessionConnection | None:
    admitted = AdmittedUser.from_name(user)
    if admitted is None or not isinstance(server, str) or not isinstance(client, int):
        return None
    return SessionConnection(
        server, client, admitted, host if isinstance(host, str) else "", _seconds(start)
    )


def _seconds(start: object) -> float | None:
    if not isinstance(start, str):
        return None
    # The server writes nanoseconds.
    whole, _, _ = start.removesuffix("Z").partition(".")
    try:
        return parse_time(f"{whole}Z")
    except TimestampError:
        return None


def _read(data: bytes) -> dict[str, Any]:
    try:
        return _object(orjson.loads(data))
    except orjson.JSONDecodeError:
        return {}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


_CHANGES: Final = {"CONNECT": ConnectionChange.OPENED, "DISCONNECT": ConnectionChange.CLOSED}


ConnectionKey = tuple[str, int]
"""A server, and the number of a connection on it."""


def connection_key(connection: SessionConnection) -> ConnectionKey:
    """The server and number of a connection."""
    return connection.server, connection.client


@dataclass(slots=True)
class ConnectionTable:
    """Connections by key, and by session and contract."""

    _held: dict[ConnectionKey, SessionConnection] = field(default_factory=dict)
    _by_session: dict[str, dict[str, set[ConnectionKey]]] = field(default_factory=dict)

    def __contains__(self, where: ConnectionKey) -> bool:
        return where in self._held

    def all(self) -> tuple[SessionConnection, ...]:
        """Every connection, in the order in which they were seen."""
        return tuple(self._held.values())

    def has_session(self, key: str) -> bool:
        """Whether a session has a connection."""
        return key in self._by_session

    def of_session(self, key: str) -> tuple[SessionConnection, ...]:
        """The connections of a session."""
        under = self._by_session.get(key, {})
        return tuple(self._held[where] for places in under.values() for where in places)

    def add(self, connection: SessionConnection) -> bool:
        """Add a new one; whether it is the first of its session and contract."""
        admitted, where = connection.admitted, connection_key(connection)
        self._held[where] = connection
        places = self._by_session.setdefault(admitted.key, {}).setdefault(admitted.digest, set())
        places.add(where)
        return len(places) == 1

    def remove(self, where: ConnectionKey) -> tuple[SessionConnection, bool] | None:
        """Remove one; the record and whether it was the last of its session and contract.

        The record is the one that was added, whatever the closing advisory says.
        """
        gone = self._held.pop(where, None)
        if gone is None:
            return None
        under = self._by_session[gone.admitted.key]
        places = under[gone.admitted.digest]
        places.discard(where)
        if places:
            return gone, False
        del under[gone.admitted.digest]
        if not under:
            del self._by_session[gone.admitted.key]
        return gone, True
