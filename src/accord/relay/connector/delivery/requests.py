"""What the store knows of an agent's actions: requests, chats and own messages.

Units of work only; `outbound` decides.
"""

from dataclasses import dataclass
from typing import Final

import orjson
from blake3 import blake3
from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from accord.relay.connector.delivery.tables import chats, messages, requests
from accord.relay.gate import Chat
from accord.relay.wire.actions import Action, FollowUp, Result, write_action
from accord.storage import Record, journal

OUTBOUND: Final = "relay.outbound"

_KNOWN = select(requests.c.digest, requests.c.result, requests.c.asked_at).where(
    requests.c.instance == bindparam("of"), requests.c.request_id == bindparam("id")
)
_THIS = (requests.c.instance == bindparam("of"), requests.c.request_id == bindparam("id"))
_FORGET = delete(requests).where(*_THIS)
_FINISH = update(requests).where(*_THIS).values(result=bindparam("said"))
_CHAT = (
    select(chats)
    .where(chats.c.instance == bindparam("of"), chats.c.chat_id == bindparam("chat"))
    .order_by(chats.c.delivered_at.desc())
)
_SENT_BY = select(messages.c.instance).where(
    messages.c.platform == bindparam("platform"),
    messages.c.chat_id == bindparam("chat"),
    messages.c.message_id == bindparam("message"),
)
_OWN = {
    "postgresql": postgresql.insert(messages).on_conflict_do_nothing(),
    "sqlite": sqlite.insert(messages).on_conflict_do_nothing(),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, with a digest of its action."""

    instance: str
    request_id: str
    digest: str
    at: int

    @property
    def key(self) -> str:
        """The name of the request among those of all instances: what a platform is given."""
        return f"{self.instance}/{self.request_id}"


@dataclass(frozen=True, slots=True)
class Known:
    """What was written down of an earlier request of the same id."""

    digest: str
    result: Result | None


@dataclass(frozen=True, slots=True)
class Told:
    """What the journal is told of an action."""

    tenant: str
    platform: str
    action: Action
    rule: str
    source: str
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A chat, and maybe a message in it, as an action names them.

    Attributes:
        held: The platforms and scopes in which the instance holds a channel of this id.
    """

    tenant: str
    instance: str
    platform: str | None
    chat_id: str
    scope_id: object
    message_id: str | None
    held: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Found:
    """The connector's own record of a chat and of a message in it."""

    platform: str | None = None
    bot_id: str | None = None
    chat: Chat | None = None
    sent_by: str | None = None


def digest_of(action: Action) -> str:
    """By which the same action is known again."""
    return blake3(orjson.dumps(write_action(action))).hexdigest()


def begin(connection: Connection, asked: Asked, oldest: int) -> Known | None:
    """Write a request down, unless it is known; one from before `oldest` is forgotten."""
    this = {"of": asked.instance, "id": asked.request_id}
    row = connection.execute(_KNOWN, this).first()
    if row is not None and row.asked_at >= oldest:
        result = None if row.result is None else Result.from_dict(orjson.loads(row.result))
        return Known(row.digest, result)
    if row is not None:
        connection.execute(_FORGET, this)
    values = {"instance": asked.instance, "request_id": asked.request_id, "digest": asked.digest}
    connection.execute(insert(requests), values | {"result": None, "asked_at": asked.at})
    return None


def finish(
    connection: Connection, asked: Asked, result: Result, sent: list[str], told: Told
) -> None:
    """Write the result down, and whose messages these are."""
    said = orjson.dumps(result.to_dict()).decode()
    this = {"of": asked.instance, "id": asked.request_id}
    connection.execute(_FINISH, this | {"said": said})
    chat_id = None if isinstance(told.action, FollowUp) else told.action.chat_id
    if sent and chat_id is not None:
        seat = {"platform": told.platform, "chat_id": chat_id, "instance": asked.instance}
        own = [seat | {"message_id": each, "sent_at": asked.at} for each in sent]
        connection.execute(_OWN[connection.dialect.name], own)
    body = {
        "tenant": told.tenant,
        "instance": asked.instance,
        "platform": told.platform,
        "op": told.action.op,
        "chat_id": chat_id,
        "rule": told.rule,
        "success": result.success,
        "messages": len(sent),
        "action_digest": asked.digest,
    }
    if told.trace_id is not None:
        body["trace_id"] = told.trace_id
    name = f"{asked.key}/{asked.at}"
    text = orjson.dumps(body).decode()
    journal.append(connection, [Record(OUTBOUND, name, asked.at, told.source, text)])


def look_up(connection: Connection, wanted: Wanted) -> Found:
    """What is known of a chat.

    Where the same id is known on two platforms or in two scopes, the action must say which it
    means; what it says otherwise is for the gate to compare.
    """
    this = {"of": wanted.instance, "chat": wanted.chat_id}
    seen = connection.execute(_CHAT, this).all()
    places = {(row.platform, row.scope_id) for row in seen} | wanted.held
    if wanted.platform is not None:
        places = {place for place in places if place[0] == wanted.platform}
    if len(places) > 1:
        places = {place for place in places if place[1] == wanted.scope_id}
    if len(places) != 1:
        return Found()
    place = places.pop()
    latest = next((row for row in seen if (row.platform, row.scope_id) == place), None)
    sent_by = None
    if wanted.message_id is not None:
        values = {"platform": place[0], "chat": wanted.chat_id, "message": wanted.message_id}
        sent_by = connection.execute(_SENT_BY, values).scalar()
    chat = Chat(
        tenant=latest.tenant if latest else wanted.tenant,
        scope_id=place[1] or None,
        user_id=(latest.user_id or None) if latest else None,
        holder=wanted.instance if place in wanted.held else None,
        delivered_at=latest.delivered_at / 1000 if latest else None,
    )
    return Found(place[0], latest.bot_id if latest else None, chat, sent_by)
