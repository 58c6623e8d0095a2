"""Connections of admitted sessions: read from server advisories, and listed in memory."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

from accord.authority.rules.admission import AdmittedUser
from accord.kernel.clock import TimestampError, parse_time

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
