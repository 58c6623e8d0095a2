"""This node's messages in one community.

The folded state says which messages are valid, delivered and read; their text comes from the log's
store and is decrypted on each request. Plain text is never stored.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection

from accord.capabilities.chat import encryption
from accord.community.errors import CommunityError
from accord.community.rules.content import ChatRecord
from accord.community.rules.state import CommunityState
from accord.community.store import sync_bodies
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

MAX_BYTES: Final = 4 * 1024 * 1024
"""How many bytes of the log one answer may use; an event has at most a sixteenth of that."""

# Few at a time, since each may be an event of the largest size.
_TOGETHER: Final = 16


class ChatEntry(NamedTuple):
    """A valid message and the id of its event."""

    event_id: str
    message: ChatRecord


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in the order of the log; `more` if some that were asked for are left out."""

    messages: list[dict[str, Any]]
    more: bool


def conversation(
    state: CommunityState, own: str, *, peer: str | None = None, since: int = -1
) -> list[ChatEntry]:
    """Return the messages from or to `own` after a lamport, in log order."""
    found = [
        ChatEntry(event_id, message)
        for event_id, messages in state.content.messages.items()
        for message in messages
        if own in (message.author, message.recipient)
        and message.lamport > since
        and (peer is None or {message.author, message.recipient} == {own, peer})
    ]
    return sorted(found, key=lambda each: (each.message.lamport, each.event_id))


def undelivered(state: CommunityState, own: str) -> list[str]:
    """Return the ids of messages to a node that have no delivery receipt."""
    return [
        event_id
        for event_id, messages in state.content.messages.items()
        for message in messages
        if message.recipient == own and message.delivered_at is None
    ]


def sent_as(state: CommunityState, own: str, client_id: str) -> ChatEntry | None:
    """Return the message that a node sent under a client id."""
    for event_id, messages in state.content.messages.items():
        for message in messages:
            if (message.author, message.client_id) == (own, client_id):
                return ChatEntry(event_id, message)
    return None


def with_attachment(state: CommunityState, own: str, cid: str) -> list[ChatEntry]:
    """Return the messages from or to a node that have a blob attached, in log order."""
    return [
        entry
        for entry in conversation(state, own)
        if any(attached == cid for attached, _ in entry.message.attachments)
    ]


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Opens messages from the store of a log; `number` is the community's number there."""

    key: SigningKey
    community: str
    number: int

    def page(
        self, connection: Connection, entries: Sequence[ChatEntry], limit: int, *, newest: bool
    ) -> MessagePage:
        """Return the first or the last messages, as many as fit into one answer.

        Messages of one lamport stay together, because the next page is asked for by lamport.
        """
        ordered = entries[::-1] if newest else entries
        shown: list[dict[str, Any]] = []
        size = 0
        for entry, raw in self._bodies(connection, ordered):
            size += len(raw or b"")
            is_full = len(shown) >= limit or size > MAX_BYTES
            if is_full and shown and shown[-1]["lamport"] != entry.message.lamport:
                break
            shown.append(self._message(entry, raw))
        return MessagePage(shown[::-1] if newest else shown, len(shown) < len(entries))

    def attachments(
        self, connection: Connection, entries: Sequence[ChatEntry], cid: str
    ) -> list[tuple[ChatEntry, Mapping[str, str]]]:
        """Return the entries for a blob in the attachments of all messages that can be opened."""
        found: list[tuple[ChatEntry, Mapping[str, str]]] = []
        for entry, raw in self._bodies(connection, entries):
            if raw is None:
                continue
            data = orjson.loads(raw)["data"]
            named: Iterable[Mapping[str, str]] = data.get("attachments", ())
            if "sealed" in data:
                try:
                    named = encryption.open_sealed(
                        self.key, self.community, entry.message.author, data
                    ).attachments
                except CommunityError:
                    continue
            found += [(entry, each) for each in named if each["cid"] == cid]
        return found

    def _bodies(
        self, connection: Connection, entries: Iterable[ChatEntry]
    ) -> Iterator[tuple[ChatEntry, bytes | None]]:
        waiting = iter(entries)
        while some := list(itertools.islice(waiting, _TOGETHER)):
            places = [
                (
                    each.message.lamport,
                    each.event_id,
                    canonical.parse_digest(each.message.event).value,
                )
                for each in some
            ]
            for entry, body in zip(some, sync_bodies(connection, self.number, places), strict=True):
                yield entry, None if body is None or body.is_stub else body.raw

    def _message(self, entry: ChatEntry, raw: bytes | None) -> dict[str, Any]:
        message = entry.message
        return {
            "event_id": entry.event_id,
            "lamport": message.lamport,
            "from": message.author,
            "to": message.recipient,
            **self._content(message, raw),
            "created_at": message.sent_at,
            "delivered_at": message.delivered_at,
            "read_at": message.read_at,
        }

    def _content(self, message: ChatRecord, raw: bytes | None) -> dict[str, Any]:
        clear = [{"cid": cid, "name": name} for cid, name in message.attachments]
        if raw is None:
            why = "the log no longer holds this message"
            return {"body": None, "attachments": clear, "sealed": None, "problem": why}
        data = orjson.loads(raw)["data"]
        if "sealed" not in data:
            return {"body": data["body"], "attachments": clear, "sealed": False}
        try:
            content = encryption.open_sealed(self.key, self.community, message.author, data)
        except CommunityError as error:
            return {"body": None, "attachments": clear, "sealed": True, "problem": error.what}
        return {
            "body": content.body,
            "attachments": [
                {"cid": each["cid"], "name": each["name"]} for each in content.attachments
            ],
            "sealed": True,
            "nonce": canonical.encode_base64url(content.nonce),
        }
