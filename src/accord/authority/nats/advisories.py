"""What servers tell on the system account about connections, read strictly.

Pure. Anything that is not about a session that the callout let in is nothing.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

from accord.authority.nats.admission import Admitted
from accord.kernel.clock import TimestampError, parse_time

PAGE: Final = 1024


class Change(StrEnum):
    """What became of a connection."""

    OPENED = "opened"
    CLOSED = "closed"
    KICKED = "kicked"


@dataclass(frozen=True, slots=True)
class Connection:
    """A session's connection.

    Attributes:
        server: The server's id.
        client: The connection's number on that server.
        admitted: Whom it was given to.
        host: Where it comes from.
        since: When it was made, in seconds.
    """

    server: str
    client: int
    admitted: Admitted = field(compare=False)
    host: str = field(default="", compare=False)
    since: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Page:
    """What one server lists of its connections.

    Attributes:
        server: The server's id.
        connections: Those of sessions.
        following: Where the next page begins, if there is one.
    """

    server: str
    connections: tuple[Connection, ...]
    following: int | None


def read_advisory(subject: str, data: bytes) -> tuple[Change, Connection] | None:
    """Read the advisory of a connection that came or went."""
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


def read_page(data: bytes) -> Page | None:
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
    return Page(
        server,
        tuple(connection for connection in found if connection is not None),
        end if more else None,
    )


def _connection(
    server: object, client: object, user: object, host: object, start: object
) -> Connection | None:
    admitted = Admitted.from_name(user)
    if admitted is None or not isinstance(server, str) or not isinstance(client, int):
        return None
    return Connection(
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


_CHANGES: Final = {"CONNECT": Change.OPENED, "DISCONNECT": Change.CLOSED}
