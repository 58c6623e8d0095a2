"""This node's messages in one community: which there are, and what they say.

Which messages stand, and when they were delivered and read, is the fold's word; what they say comes
from the log's store and is opened here, with the node's key, each time it is asked for. Plain text
is never written anywhere.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Connection

from accord.capabilities.chat import sealing
from accord.community.errors import CommunityError
from accord.community.fold import State
from accord.community.fold.content import Message
from accord.community.log.holding import bodies
from accord.kernel import base64url, digest
from accord.kernel.signing import SigningKey

MAX_BYTES: Final = 4 * 1024 * 1024
"""How much of the log one answer is made from; an event has at most a sixteenth of it."""

# Few at a time: each may be the largest of events.
_TOGETHER: Final = 16


class Entry(NamedTuple):
    """A message that stands, by the id of its event."""

    event_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in the order of the log; `more` when some that were asked for are left out."""

    messages: list[dict[str, Any]]
    more: bool


def conversation(
    state: State, own: str, *, peer: str | None = None, since: int = -1
) -> list[Entry]:
    """The messages that a node sent or was sent behind a lamport, in the order of the log.

    Args:
        state: What the log comes to.
        own: The node.
        peer: The other end; anybody if nothing is said.
        since: The lamport.
    """
    found = [
        Entry(event_id, message)
        for event_id, messages in state.content.messages.items()
        for message in messages
        if own in (message.author, message.recipient)
        and message.lamport > since
        and (peer is None or {message.author, message.recipient} == {own, peer})
    ]
    return sorted(found, key=lambda each: (each.message.lamport, each.event_id))


def undelivered(state: State, own: str) -> list[str]:
    """The ids of the messages that were sent to a node and not yet said to have arrived."""
    return [
        event_id
        for event_id, messages in state.content.messages.items()
        for message in messages
        if message.recipient == own and message.delivered_at is None
    ]


def sent_as(state: State, own: str, client_id: str) -> Entry | None:
    """The message that a node has sent under a client id."""
    for event_id, messages in state.content.messages.items():
        for message in messages:
            if (message.author, message.client_id) == (own, client_id):
                return Entry(event_id, message)
    return None


class Reader:
    """Reads messages with the key of a node, from the store of one log.

    Args:
        key: The node's.
        community: The community's id.
        number: The community's number in the store.
    """

    def __init__(self, key: SigningKey, community: str, number: int) -> None:
        self._key = key
        self._community = community
        self._number = number

    def page(
        self, connection: Connection, entries: Sequence[Entry], limit: int, *, newest: bool
    ) -> Page:
        """As many of the messages as fit into an answer: the first, or the last.

        Those of one lamport stay together, since whoever asks for more names a lamport.
        """
        ordered = entries[::-1] if newest else entries
        shown: list[dict[str, Any]] = []
        size = 0
        for entry, raw in self._raws(connection, ordered):
            size += len(raw or b"")
            is_full = len(shown) >= limit or size > MAX_BYTES
            if is_full and shown and shown[-1]["lamport"] != entry.message.lamport:
                break
            shown.append(self._shown(entry, raw))
        return Page(shown[::-1] if newest else shown, len(shown) < len(entries))

    def _raws(
        self, connection: Connection, entries: Iterable[Entry]
    ) -> Iterator[tuple[Entry, bytes | None]]:
        waiting = iter(entries)
        while some := list(itertools.islice(waiting, _TOGETHER)):
            places = [
                (each.message.lamport, each.event_id, digest.parse(each.message.event).value)
                for each in some
            ]
            for entry, body in zip(some, bodies(connection, self._number, places), strict=True):
                yield entry, None if body is None or body.is_stub else body.raw

    def _shown(self, entry: Entry, raw: bytes | None) -> dict[str, Any]:
        message = entry.message
        return {
            "event_id": entry.event_id,
            "lamport": message.lamport,
            "from": message.author,
            "to": message.recipient,
            **self._said(message, raw),
            "created_at": message.sent_at,
            "delivered_at": message.delivered_at,
            "read_at": message.read_at,
        }

    def _said(self, message: Message, raw: bytes | None) -> dict[str, Any]:
        clear = [{"cid": cid, "name": name} for cid, name in message.attachments]
        if raw is None:
            why = "the log no longer keeps what it said"
            return {"body": None, "attachments": clear, "sealed": None, "problem": why}
        data = orjson.loads(raw)["data"]
        if "sealed" not in data:
            return {"body": data["body"], "attachments": clear, "sealed": False}
        try:
            letter = sealing.open_sealed(self._key, self._community, message.author, data)
        except CommunityError as error:
            return {"body": None, "attachments": clear, "sealed": True, "problem": error.what}
        return {
            "body": letter.body,
            "attachments": [dict(each) for each in letter.attachments],
            "sealed": True,
            "nonce": base64url.encode(letter.nonce),
        }
