"""`chat.send` (section 4.15), `chat.history` (4.16) and the search, for the node's own clients."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakValueDictionary

from sqlalchemy import Connection

from accord.capabilities.chat import attachments, encryption
from accord.capabilities.chat.delivery import SENT, DeliveryReceipts, DeliveryState, MessageDelivery
from accord.capabilities.chat.encryption import (
    EXTENSION,
    FILES_EXTENSION,
    KEY_BYTES,
    NONCE_BYTES,
    MessageContent,
    MessageEnvelope,
)
from accord.capabilities.chat.messages import MessagePage, MessageReader
from accord.capabilities.chat.search import SEARCH, MessageSearch
from accord.capabilities.file import Blobs
from accord.capabilities.file.shares import ShareMark
from accord.community.bus import Call
from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.messages import OwnMessage, conversation, sent_message, with_file
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.community.rules.formats import Level
from accord.kernel import canonical
from accord.kernel.clock import Clock

_LIMIT: Final = 200
# Each call may wait for a recipient that does not answer.
_AT_ONCE: Final = 256
# Attachments may have 16 GiB.
_SECONDS: Final = 900.0
# The name of an attachment whose message the log no longer holds.
_NAMELESS: Final = "attachment"


def register(
    node: Node,
    clock: Clock,
    blobs: Blobs,
    *,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> "Chat":
    """Offer chat on a node's bus; the caller runs the returned `Chat`."""
    descriptors = capabilities.load_descriptors("accord.capabilities.chat")
    delivery = MessageDelivery(node)
    service = _ChatService(node, blobs, delivery, random_bytes)
    send = descriptors["chat.send@1.0"]
    node.bus.registry.register(send, service.send, max_concurrent=_AT_ONCE, seconds=_SECONDS)
    # The call is idempotent, but the bus stores the answers of idempotent calls, and decrypted
    # messages must not be stored.
    unwritten = replace(descriptors["chat.history@1.0"], idempotent=False)
    node.bus.registry.register(unwritten, service.history)
    node.bus.registry.register(descriptors[f"{attachments.OPEN}@1.0"], service.attachment)
    search = MessageSearch(node)
    node.bus.registry.register(descriptors[f"{SEARCH}@1.0"], search.answer)
    return Chat(DeliveryReceipts(node, clock), delivery, search)


@dataclass(frozen=True, slots=True)
class Chat:
    """Writes delivery receipts and indexes messages while it runs."""

    receipts: DeliveryReceipts
    delivery: MessageDelivery
    search: MessageSearch

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.receipts.run(), name="delivery receipts")
                group.create_task(self.search.run(), name="words of messages")
        finally:
            await self.delivery.close()


@dataclass(frozen=True, slots=True)
class _SentMessage:
    event_id: str
    lamport: int
    recipient: str
    is_delivered: bool


class _ChatService:
    def __init__(
        self,
        node: Node,
        blobs: Blobs,
        delivery: MessageDelivery,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._node = node
        self._blobs = blobs
        self._random_bytes = random_bytes
        self._delivery = delivery
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def send(self, call: Call) -> Mapping[str, Any]:
        call.check_own("speak in its name")
        hosted = self._node.community(call.community)
        message = call.body["input"]
        # Concurrent calls with one client id send one message.
        name = hosted.community_id, message["client_id"]
        async with self._turns.setdefault(name, asyncio.Lock()):
            sent = await _sent_message(hosted, message["client_id"]) or await self._send(
                hosted, message
            )
        way = DeliveryState.DIRECT
        if not sent.is_delivered:
            way = await self._delivery.deliver(hosted, sent.recipient)
        output = {"event_id": sent.event_id, "lamport": sent.lamport, "delivered": way.value}
        return call.answer(output)

    async def history(self, call: Call) -> Mapping[str, Any]:
        call.check_own("read its messages")
        hosted = self._node.community(call.community)
        query = call.body["input"]
        since = query.get("since_lamport")
        reader = MessageReader(self._node.key, hosted.community_id)
        limit, newest = query.get("limit", _LIMIT), since is None

        def read(connection: Connection) -> MessagePage:
            found = conversation(
                connection,
                hosted.log.number,
                peer=query.get("peer"),
                since=-1 if since is None else since,
                newest=newest,
            )
            return reader.page(found, limit, newest=newest)

        page = await hosted.log.store.read(read)
        return call.answer({"messages": page.messages}, more=page.more or None)

    async def attachment(self, call: Call) -> Mapping[str, Any]:
        call.check_own("read its messages")
        hosted = self._node.community(call.community)
        cid = call.body["input"]["cid"]
        entries = await hosted.log.store.read(lambda c: with_file(c, hosted.log.number, cid))
        reader = MessageReader(self._node.key, hosted.community_id)
        found = await asyncio.to_thread(reader.attachments, entries, cid)
        entry, attached = await self._matching(found, cid) or (None, {})
        key = canonical.decode_base64url(attached["key"]) if "key" in attached else None
        if entry is None and entries:
            # The log no longer holds the message, but its key is stored once it was opened.
            key = await asyncio.to_thread(self._blobs.key, cid)
            entry, attached = (None if key is None else entries[0]), {"name": _NAMELESS}
        if entry is None:
            raise CommunityError(
                Code.NOT_FOUND, "no message that can be opened here has it attached", where=cid
            )
        output = {
            "cid": cid,
            "name": attached["name"],
            "key": None if key is None else canonical.encode_base64url(key),
            "event_id": entry.event_id,
            "from": entry.author,
            "to": entry.recipient,
        }
        return call.answer(output)

    async def _matching(
        self, found: Sequence[tuple[OwnMessage, Mapping[str, str]]], cid: str
    ) -> tuple[OwnMessage, Mapping[str, str]] | None:
        """Find the message whose key opens a blob; others may name the CID with a wrong key."""
        if not await asyncio.to_thread(self._blobs.has, cid):
            return next((each for each in found if "key" in each[1]), found[0] if found else None)
        for entry, attached in found:
            if "key" in attached:
                key = canonical.decode_base64url(attached["key"])
                if await attachments.opens(self._blobs, cid, key):
                    await asyncio.to_thread(self._blobs.put_key, cid, key)
                    return entry, attached
        return next((each for each in found if "key" not in each[1]), None)

    async def _send(self, hosted: HostedCommunity, message: Mapping[str, Any]) -> _SentMessage:
        event = await hosted.log.append(SENT, await self._data(hosted, message))
        return _SentMessage(event.event_id, event.lamport, message["recipient"], is_delivered=False)

    async def _data(self, hosted: HostedCommunity, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the event data: sealed, unless the sender allows clear text."""
        recipient = message["recipient"]
        attached = message.get("attachments", [])
        if hosted.level_of(recipient) < Level.MEMBER:
            raise CommunityError(
                Code.NOT_FOUND, "the recipient is no member of this community", where=recipient
            )
        if not message["body"] and not attached:
            raise bad_request("the message is empty", where="/input/body")
        await asyncio.to_thread(self._check_attachments, attached)
        extensions = hosted.state.extensions_of(recipient)
        is_clear_allowed = message.get("allow_clear", False)
        if EXTENSION in extensions:
            if FILES_EXTENSION in extensions or recipient == hosted.own_id:
                attached = [await self._encrypted(each) for each in attached]
            elif attached and not is_clear_allowed:
                raise bad_request(
                    "the recipient's node has never said that it can open encrypted attachments",
                    where=recipient,
                    mend="ask its owner to update it; allow_clear seals the text and leaves the "
                    "files as they are, so that whoever else gets hold of them can read them",
                )
            else:
                await self._open(hosted, attached)
            envelope = MessageEnvelope(
                hosted.community_id, hosted.own_id, recipient, message["client_id"]
            )
            content = MessageContent(message["body"], attached, self._random_bytes(NONCE_BYTES))
            return encryption.seal(envelope, content)
        if not is_clear_allowed:
            raise bad_request(
                "the recipient's node has never said that it can open sealed messages",
                where=recipient,
                mend="allow_clear sends it so that every member can read it",
            )
        await self._open(hosted, attached)
        return {name: value for name, value in message.items() if name != "allow_clear"}

    async def _encrypted(self, attached: Mapping[str, str]) -> dict[str, str]:
        """Store an encrypted copy of an attached file and return its reference."""
        key = self._random_bytes(KEY_BYTES)
        source = self._blobs.read(attached["cid"])
        cid = await self._blobs.put(attachments.encrypted(source, key))
        return {"cid": cid, "name": attached["name"], "key": canonical.encode_base64url(key)}

    async def _open(self, hosted: HostedCommunity, attached: Sequence[Mapping[str, str]]) -> None:
        """Make files readable that are sent in the clear, even if they were withdrawn before."""
        for each in attached:
            unmark = self._blobs.shares.unmark
            await asyncio.to_thread(unmark, hosted.community_id, ShareMark.WITHDRAWN, each["cid"])

    def _check_attachments(self, attachments: list[Mapping[str, str]]) -> None:
        for each in attachments:
            if not self._blobs.has(each["cid"]):
                raise CommunityError(
                    Code.NOT_FOUND,
                    "this node does not have what is attached",
                    where=each["cid"],
                    mend="add it first with `accord file add`",
                )


async def _sent_message(hosted: HostedCommunity, client_id: str) -> _SentMessage | None:
    found = await hosted.log.store.read(
        lambda c: sent_message(c, hosted.log.number, hosted.own_id, client_id)
    )
    if found is None:
        return None
    return _SentMessage(
        found.event_id, found.lamport, found.recipient, found.delivered_at is not None
    )
