"""Sessions."""

from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select, update

from accord.authority.records import Holder, Session
from accord.authority.stored.encoding import decode, encode
from accord.authority.tables import sessions


def read(connection: Connection, key: str) -> Session | None:
    """The session of a key."""
    row = connection.execute(select(sessions).where(sessions.c.key == key)).mappings().first()
    return None if row is None else _session(row)


def read_some(
    connection: Connection, *, subject: str | None = None, holder: Holder | None = None
) -> list[Session]:
    """Sessions, the oldest first."""
    query = select(sessions).order_by(sessions.c.created_at, sessions.c.key)
    if subject is not None:
        query = query.where(sessions.c.subject == subject)
    if holder is not None:
        query = query.where(sessions.c.holder == holder.value)
    return [_session(row) for row in connection.execute(query).mappings()]


def write(connection: Connection, session: Session) -> None:
    """Keep a session, new or changed."""
    values: dict[str, Any] = {
        "holder": session.holder.value,
        "subject": session.subject,
        "contract_id": session.contract_id,
        "digest": session.digest,
        "origin": session.origin,
        "capabilities": encode(sorted(session.capabilities)),
        "created_at": session.created_at,
        "expires_at": session.expires_at,
        "revoked_at": session.revoked_at,
        "surfaces": None if session.surfaces is None else encode(sorted(session.surfaces)),
    }
    changed = update(sessions).where(sessions.c.key == session.key).values(values)
    if not connection.execute(changed).rowcount:
        connection.execute(insert(sessions).values(key=session.key, **values))


def _session(row: RowMapping) -> Session:
    return Session(
        row["key"],
        Holder(row["holder"]),
        row["subject"],
        row["contract_id"],
        row["digest"],
        row["origin"],
        frozenset(decode(row["capabilities"])),
        row["created_at"],
        row["expires_at"],
        row["revoked_at"],
        None if row["surfaces"] is None else frozenset(decode(row["surfaces"])),
    )
