"""What happened since a number in the feed, as far as one user may know of it.

Owns what a browser is told live. Access is looked up each time, so that nothing is told of a chat
from the moment on at which its user can no longer view it.
"""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from accord.relay.platforms.webchat import access, changes, messages
from accord.relay.platforms.webchat.access import Level
from accord.relay.platforms.webchat.changes import Kind
from accord.relay.platforms.webchat.tables import accounts

_BATCH: Final = 200
_TYPING_MS: Final = 6_000


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell, with its number in the feed."""

    seq: int
    name: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class News:
    """What a user missed, up to a number.

    Attributes:
        is_lost: Whether too much was missed to tell, so that everything must be looked at anew.
    """

    seq: int
    events: tuple[Event, ...] = ()
    is_lost: bool = False


def since(connection: Connection, user_id: str, after: int, now: int) -> News:
    """What a user may know of what happened after a number."""
    head = changes.head(connection)
    if not head - changes.KEPT <= after <= head:
        return News(head, is_lost=True)
    rows = changes.entries(connection, after, _BATCH)
    if not rows:
        return News(after)
    # Of a message that changed several times the last is enough, and of changed access, too.
    last = {_subject(row): row for row in rows}
    viewable: dict[str, bool] = {}
    kept = [
        row
        for row in sorted(last.values(), key=lambda row: int(row.seq))
        if row.kind == Kind.ACCESS.value or _can_view(connection, user_id, row.place, viewable)
    ]
    shown = messages.these(connection, (row.message_id for row in kept if row.message_id))
    events = (_event(connection, row, shown, user_id, now) for row in kept)
    return News(rows[-1].seq, tuple(event for event in events if event is not None))


def _subject(row: Row[Any]) -> tuple[object, ...]:
    if row.kind == Kind.ACCESS.value:
        return (row.kind,)
    return row.kind, row.place, row.message_id or row.account_id


def _can_view(
    connection: Connection, user_id: str, chat_id: str, viewable: dict[str, bool]
) -> bool:
    if chat_id not in viewable:
        chat = access.find(connection, chat_id)
        viewable[chat_id] = (
            chat is not None and access.level(connection, user_id, chat) >= Level.VIEW
        )
    return viewable[chat_id]


def _event(
    connection: Connection, row: Row[Any], shown: dict[int, Row[Any]], user_id: str, now: int
) -> Event | None:
    if row.kind == Kind.MESSAGE.value:
        return Event(row.seq, row.kind, messages.shown(shown[row.message_id]))
    if row.kind == Kind.ACCESS.value:
        return Event(row.seq, row.kind, {})
    if row.account_id == user_id or row.at < now - _TYPING_MS:
        return None
    name = select(accounts.c.name).where(accounts.c.id == row.account_id)
    author = {"id": row.account_id, "name": connection.execute(name).scalar_one()}
    return Event(row.seq, row.kind, {"chat": row.place, "author": author})
