"""The messages from and to this node: an index of the log, and an archive of what the log dropped.

Rows follow the verdicts of the fold, in the transaction that writes those. A message's text stays
in its event, sealed; when retention drops that, the row takes it over.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    tuple_,
    update,
)

from accord.community.rules.content import ChatRecord
from accord.community.rules.event import Event
from accord.community.rules.state import CommunityState
from accord.community.store import events, message_files, message_words, messages

MAX_WORDS: Final = 8
"""How many words one search compares."""

_TOGETHER: Final = 300
# Few at a time, since each may be an event of the largest size.
_BODIES: Final = 16
_COUNTED: Final = 1000
_KINDS: Final = "chat.message."

# By event id and author.
Records: TypeAlias = Mapping[tuple[str, str], ChatRecord]


@dataclass(frozen=True, slots=True)
class OwnMessage:
    """A valid message from or to this node; `body` is its event, None if nobody has it any more.

    Attributes:
        number: Rises with the order in which messages arrived at this node.
        attachments: Pairs of CID and name, as the envelope tells them.
    """

    number: int
    event_id: str
    author: str
    recipient: str
    lamport: int
    sent_at: str
    attachments: tuple[tuple[str, str], ...]
    delivered_at: str | None
    read_at: str | None
    body: bytes | None


def touched_messages(changed: Iterable[Event]) -> set[str]:
    """The ids of the messages that events with a new verdict are about."""
    return {
        event.event_id
        if event.event_type == "chat.message.sent"
        else str(event.data.get("target_event_id", ""))
        for event in changed
        if event.event_type.startswith(_KINDS)
    }


def own_records(state: CommunityState, own: str, ids: Iterable[str] | None = None) -> Records:
    """The messages from or to a node in a state: those of some ids, or all."""
    found = state.content.messages
    return {
        (event_id, message.author): message
        for event_id in (list(found) if ids is None else ids)
        for message in found.get(event_id, ())
        if own in (message.author, message.recipient)
    }


def put_messages(
    connection: Connection, number: int, own: str, ids: Collection[str], records: Records
) -> None:
    """Make the rows of some ids what the records of them say."""
    known: dict[tuple[str, str], tuple[int, str | None, str | None]] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _TOGETHER):
        query = _KNOWN.where(
            messages.c.community == number,
            messages.c.event_id.in_(wanted[start : start + _TOGETHER]),
        )
        known |= {(row[1], row[2]): (row[0], row[3], row[4]) for row in connection.execute(query)}
    _bring(connection, number, own, known, records)
    _remove(connection, [row[0] for name, row in known.items() if name not in records])


def put_all_messages(
    connection: Connection, number: int, own: str, records: Records, *, is_whole: bool
) -> None:
    """Make all rows what the records say; without `is_whole` further ones stay."""
    query = _KNOWN.where(messages.c.community == number)
    known = {(row[1], row[2]): (row[0], row[3], row[4]) for row in connection.execute(query)}
    _bring(connection, number, own, known, records)
    if is_whole:
        _remove(connection, [row[0] for name, row in known.items() if name not in records])


_KNOWN: Final = select(
    messages.c.id,
    messages.c.event_id,
    messages.c.author,
    messages.c.delivered_at,
    messages.c.read_at,
)
_RECEIPTS: Final = (
    update(messages)
    .where(messages.c.id == bindparam("of"))
    .values(delivered_at=bindparam("delivered"), read_at=bindparam("read"))
)


def _bring(
    connection: Connection,
    number: int,
    own: str,
    known: Mapping[tuple[str, str], tuple[int, str | None, str | None]],
    records: Records,
) -> None:
    receipts = [
        {"of": row[0], "delivered": message.delivered_at, "read": message.read_at}
        for name, message in records.items()
        if (row := known.get(name)) is not None
        and row[1:] != (message.delivered_at, message.read_at)
    ]
    if receipts:
        connection.execute(_RECEIPTS, receipts)
    new = sorted(
        ((name[0], message) for name, message in records.items() if name not in known),
        key=lambda each: (each[1].lamport, each[0]),
    )
    if not new:
        return
    last = connection.execute(select(func.max(messages.c.id))).scalar_one() or 0
    placed = list(enumerate(new, last + 1))
    connection.execute(
        insert(messages),
        [_row(each, number, own, event_id, message) for each, (event_id, message) in placed],
    )
    files = [
        {"message": each, "cid": cid}
        for each, (_, message) in placed
        for cid in dict.fromkeys(cid for cid, _ in message.attachments)
    ]
    if files:
        connection.execute(insert(message_files), files)


def _row(each: int, number: int, own: str, event_id: str, message: ChatRecord) -> dict[str, Any]:
    return {
        "id": each,
        "community": number,
        "event_id": event_id,
        "author": message.author,
        "recipient": message.recipient,
        "peer": message.recipient if message.author == own else message.author,
        "client_id": message.client_id,
        "lamport": message.lamport,
        "digest": bytes.fromhex(message.event.removeprefix("blake3:")),
        "sent_at": message.sent_at,
        "attachments": orjson.dumps(message.attachments).decode(),
        "delivered_at": message.delivered_at,
        "read_at": message.read_at,
        "body": None,
        "archived_at": None,
        "indexed": 0,
    }


def _remove(connection: Connection, numbers: Sequence[int]) -> None:
    for start in range(0, len(numbers), _TOGETHER):
        some = numbers[start : start + _TOGETHER]
        connection.execute(delete(message_words).where(message_words.c.message.in_(some)))
        connection.execute(delete(message_files).where(message_files.c.message.in_(some)))
        connection.execute(delete(messages).where(messages.c.id.in_(some)))


_EVENT = and_(
    events.c.community == messages.c.community,
    events.c.lamport == messages.c.lamport,
    events.c.event_id == messages.c.event_id,
    events.c.digest == messages.c.digest,
)
_FOUND: Final = select(
    messages.c.id,
    messages.c.event_id,
    messages.c.author,
    messages.c.recipient,
    messages.c.lamport,
    messages.c.sent_at,
    messages.c.attachments,
    messages.c.delivered_at,
    messages.c.read_at,
    func.coalesce(events.c.body, messages.c.body).label("text"),
).select_from(messages.outerjoin(events, _EVENT))
_PLACE: Final[tuple[ColumnElement[Any], ...]] = (
    messages.c.lamport,
    messages.c.event_id,
    messages.c.id,
)


def conversation(
    connection: Connection,
    number: int,
    *,
    peer: str | None = None,
    since: int = -1,
    newest: bool = False,
) -> Iterator[OwnMessage]:
    """The messages after a lamport in the order of the log, or the newest first; read lazily."""
    query = _FOUND.where(messages.c.community == number)
    if peer is not None:
        query = query.where(messages.c.peer == peer)
    if since >= 0:
        query = query.where(messages.c.lamport > since)
    order = [each.desc() for each in _PLACE] if newest else list(_PLACE)
    last: tuple[Any, ...] | None = None
    while True:
        page = query
        if last is not None:
            place, mark = tuple_(*_PLACE), tuple_(*map(literal, last))
            # The first condition is implied by the second; it is what an index is used for.
            at = messages.c.lamport
            page = (
                page.where(at <= last[0], place < mark)
                if newest
                else page.where(at >= last[0], place > mark)
            )
        found = _read(connection, page.order_by(*order).limit(_BODIES))
        yield from found
        if len(found) < _BODIES:
            return
        last = found[-1].lamport, found[-1].event_id, found[-1].number


def sent_message(
    connection: Connection, number: int, own: str, client_id: str
) -> OwnMessage | None:
    """The message that a node sent under a client id."""
    query = _FOUND.where(
        messages.c.community == number,
        messages.c.author == own,
        messages.c.client_id == client_id,
    )
    return next(iter(_read(connection, query.limit(1))), None)


def undelivered(connection: Connection, number: int, own: str) -> list[str]:
    """The ids of messages to a node that have no delivery receipt."""
    query = (
        select(messages.c.event_id)
        .where(
            messages.c.community == number,
            messages.c.recipient == own,
            messages.c.delivered_at.is_(None),
        )
        .distinct()
    )
    return list(connection.execute(query).scalars())


def with_file(connection: Connection, number: int, cid: str) -> list[OwnMessage]:
    """The messages that have a file attached, in log order."""
    query = (
        _FOUND.join(message_files, message_files.c.message == messages.c.id)
        .where(messages.c.community == number, message_files.c.cid == cid)
        .order_by(*_PLACE)
    )
    return _read(connection, query)


def attached_files(connection: Connection, number: int) -> list[tuple[str, str, str]]:
    """Sender, recipient and CID of every file that is attached to a message."""
    query = (
        select(messages.c.author, messages.c.recipient, message_files.c.cid)
        .join(message_files, message_files.c.message == messages.c.id)
        .where(messages.c.community == number)
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(query)]


def is_attached(connection: Connection, number: int, author: str, cid: str) -> bool:
    """Whether a message of an author has a file attached."""
    query = (
        select(literal(1))
        .select_from(messages.join(message_files, message_files.c.message == messages.c.id))
        .where(
            messages.c.community == number,
            messages.c.author == author,
            message_files.c.cid == cid,
        )
    )
    return connection.execute(query.limit(1)).first() is not None


def new_messages(connection: Connection, number: int, limit: int) -> list[OwnMessage]:
    """Messages whose words are not indexed yet, the oldest first."""
    query = _FOUND.where(messages.c.community == number, messages.c.indexed == 0)
    return _read(connection, query.order_by(messages.c.id).limit(limit))


def index_words(connection: Connection, found: Mapping[int, Collection[bytes]]) -> None:
    """Store the words of messages, by their numbers."""
    numbers = list(found)
    kept = set(
        connection.execute(select(messages.c.id).where(messages.c.id.in_(numbers))).scalars()
    )
    rows = [
        {"word": word, "message": each}
        for each, words in found.items()
        if each in kept
        for word in sorted(words)
    ]
    connection.execute(delete(message_words).where(message_words.c.message.in_(numbers)))
    if rows:
        connection.execute(insert(message_words), rows)
    connection.execute(update(messages).where(messages.c.id.in_(numbers)).values(indexed=1))


def search_messages(
    connection: Connection,
    number: int,
    words: Sequence[bytes],
    *,
    peer: str | None = None,
    before: int | None = None,
    limit: int,
) -> list[OwnMessage]:
    """The messages that have all words, the newest first; `before` is a message's number."""
    if not words:
        return []
    rarest, *others = sorted(words[:MAX_WORDS], key=lambda word: _count(connection, word))
    query = _FOUND.join(message_words, message_words.c.message == messages.c.id).where(
        messages.c.community == number, message_words.c.word == rarest
    )
    for word in others:
        other = message_words.alias()
        query = query.where(exists().where(other.c.word == word, other.c.message == messages.c.id))
    if peer is not None:
        query = query.where(messages.c.peer == peer)
    if before is not None:
        query = query.where(message_words.c.message < before)
    return _read(connection, query.order_by(message_words.c.message.desc()).limit(limit))


def _count(connection: Connection, word: bytes) -> int:
    """How many messages have a word, counted no further than tells rare from common."""
    some = select(literal(1)).where(message_words.c.word == word).limit(_COUNTED).subquery()
    return int(connection.execute(select(func.count()).select_from(some)).scalar_one())


def archive_bodies(connection: Connection, number: int, upto: int, now_ms: int) -> None:
    """Take over the events of messages at or below a lamport, which the log is about to drop."""
    body = select(events.c.body).where(_EVENT).scalar_subquery()
    connection.execute(
        update(messages)
        .where(
            messages.c.community == number,
            messages.c.lamport <= upto,
            messages.c.archived_at.is_(None),
        )
        .values(body=body, archived_at=now_ms)
    )


def drop_archived(connection: Connection, number: int, before_ms: int) -> int:
    """Forget the text and the words of messages that were archived before a moment."""
    old = select(messages.c.id).where(
        messages.c.community == number,
        messages.c.archived_at < before_ms,
        messages.c.body.is_not(None),
    )
    numbers = list(connection.execute(old.limit(_DROPPED)).scalars())
    for start in range(0, len(numbers), _TOGETHER):
        some = numbers[start : start + _TOGETHER]
        connection.execute(delete(message_words).where(message_words.c.message.in_(some)))
        connection.execute(update(messages).where(messages.c.id.in_(some)).values(body=None))
    return len(numbers)


_DROPPED: Final = 10_000


def _read(connection: Connection, query: Select[Any]) -> list[OwnMessage]:
    return [
        OwnMessage(
            row.id,
            row.event_id,
            row.author,
            row.recipient,
            row.lamport,
            row.sent_at,
            tuple((cid, name) for cid, name in orjson.loads(row.attachments)),
            row.delivered_at,
            row.read_at,
            None if row.text is None else row.text.encode(),
        )
        for row in connection.execute(query)
    ]
