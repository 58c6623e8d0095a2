"""This node's messages in one community, as its owner reads them.

`community.messages` says which there are, delivered and read; their text is decrypted on each
request. Plain text is never stored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from accord.capabilities.chat import encryption
from accord.community.errors import CommunityError
from accord.community.messages import OwnMessage
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

MAX_BYTES: Final = 4 * 1024 * 1024
"""How many bytes of the log one answer may use; an event has at most a sixteenth of that."""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in the order of the log; `more` if some that were asked for are left out."""

    messages: list[dict[str, Any]]
    more: bool


@dataclass(frozen=True, slots=True)
class MessageReader:
    """Opens the messages of a node in one community."""

    key: SigningKey
    community: str

    def page(self, found: Iterable[OwnMessage], limit: int, *, newest: bool) -> MessagePage:
        """The first messages, as many as fit into one answer; `newest` says that they come last.

        Messages of one lamport stay together, because the next page is asked for by lamport.
        """
        shown: list[dict[str, Any]] = []
        size, more = 0, False
        for message in found:
            size += len(message.body or b"")
            is_full = len(shown) >= limit or size > MAX_BYTES
            if is_full and shown and shown[-1]["lamport"] != message.lamport:
                more = True
                break
            shown.append(self.show(message))
        return MessagePage(shown[::-1] if newest else shown, more)

    def attachments(
        self, found: Iterable[OwnMessage], cid: str
    ) -> list[tuple[OwnMessage, Mapping[str, str]]]:
        """The entries for a blob in the attachments of all messages that can be opened."""
        entries: list[tuple[OwnMessage, Mapping[str, str]]] = []
        for message in found:
            if message.body is None:
                continue
            data = orjson.loads(message.body)["data"]
            named: Iterable[Mapping[str, str]] = data.get("attachments", ())
            if "sealed" in data:
                try:
                    named = self._opened(message, data).attachments
                except CommunityError:
                    continue
            entries += [(message, each) for each in named if each["cid"] == cid]
        return entries

    def text(self, message: OwnMessage) -> str:
        """What a message says and how its files are called; empty if it cannot be opened."""
        shown = self._content(message)
        names = (each["name"] for each in shown["attachments"])
        return "" if shown["body"] is None else "\n".join((shown["body"], *names))

    def show(self, message: OwnMessage) -> dict[str, Any]:
        """A message as `chat.history` answers it."""
        return {
            "event_id": message.event_id,
            "lamport": message.lamport,
            "from": message.author,
            "to": message.recipient,
            **self._content(message),
            "created_at": message.sent_at,
            "delivered_at": message.delivered_at,
            "read_at": message.read_at,
        }

    def _content(self, message: OwnMessage) -> dict[str, Any]:
        clear = [{"cid": cid, "name": name} for cid, name in message.attachments]
        if message.body is None:
            why = "the log no longer holds this message"
            return {"body": None, "attachments": clear, "sealed": None, "problem": why}
        data = orjson.loads(message.body)["data"]
        if "sealed" not in data:
            return {"body": data["body"], "attachments": clear, "sealed": False}
        try:
            content = self._opened(message, data)
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

    def _opened(self, message: OwnMessage, data: Mapping[str, Any]) -> encryption.MessageContent:
        return encryption.open_sealed(self.key, self.community, message.author, data)
