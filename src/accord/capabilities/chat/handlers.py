"""Serving `chat.send` (section 4.15) and `chat.history` (4.16) to the node's own clients.

A message is this node's own event and bears its signature, so nobody else can send one through it;
and what it says is for this node alone. Everybody but the node itself is `unauthorized`.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from accord.capabilities.chat import sealing
from accord.capabilities.chat.forwarding import Forwarding, Way
from accord.capabilities.chat.messages import Reader, conversation, sent_as
from accord.capabilities.chat.receipts import SENT, Receipts
from accord.capabilities.chat.sealing import EXTENSION, NONCE_BYTES, Envelope, Letter
from accord.capabilities.file import Blobs
from accord.community.bus import Call
from accord.community.envelope import schemas
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold import views
from accord.community.fold.content import used
from accord.community.node import Hosted, Node
from accord.kernel.clock import Clock

_LIMIT: Final = 200
# Each may wait a while for a recipient who does not answer.
_AT_ONCE: Final = 256


def register(
    node: Node,
    clock: Clock,
    blobs: Blobs,
    *,
    chance: Callable[[int], bytes] = secrets.token_bytes,
) -> "Chat":
    """Offer chat on a node's bus.

    Args:
        node: The node.
        clock: The time.
        blobs: Where attachments are.
        chance: Gives so many random bytes.

    Returns:
        What is to run beside the node.
    """
    descriptors = schemas.load("accord.capabilities.chat")
    forwarding = Forwarding(node)
    serving = _Serving(node, clock, blobs, forwarding, chance)
    send = descriptors["chat.send@1.0"]
    node.bus.registry.register(send, serving.send, max_concurrent=_AT_ONCE)
    # Asking twice is as good as asking once, but the bus would write the answer to its store in
    # order to give it again, and what was sealed must not be written anywhere.
    unwritten = replace(descriptors["chat.history@1.0"], idempotent=False)
    node.bus.registry.register(unwritten, serving.history)
    return Chat(Receipts(node, clock), forwarding)


class Chat:
    """What chat does by itself: it tells senders that their messages have arrived."""

    def __init__(self, receipts: Receipts, forwarding: Forwarding) -> None:
        self._receipts = receipts
        self._forwarding = forwarding

    async def run(self) -> None:
        """Go on until cancelled."""
        try:
            await self._receipts.run()
        finally:
            await self._forwarding.close()


@dataclass(frozen=True, slots=True)
class _Sent:
    event_id: str
    lamport: int
    recipient: str
    is_delivered: bool


class _Serving:
    def __init__(
        self,
        node: Node,
        clock: Clock,
        blobs: Blobs,
        forwarding: Forwarding,
        chance: Callable[[int], bytes],
    ) -> None:
        self._node = node
        self._clock = clock
        self._blobs = blobs
        self._chance = chance
        self._forwarding = forwarding
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def send(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        _check_own(call, "speak in its name")
        hosted = self._node.community(call.community)
        given = call.body["input"]
        # Of those who say the same at once, one does; the others find that it is said.
        name = hosted.community_id, given["client_id"]
        async with self._turns.setdefault(name, asyncio.Lock()):
            sent = await _sent(hosted, given["client_id"]) or await self._send(hosted, given)
        way = Way.DIRECT
        if not sent.is_delivered:
            way = await self._forwarding.deliver(hosted, sent.recipient)
        output = {"event_id": sent.event_id, "lamport": sent.lamport, "delivered": way.value}
        return {"output": output, "meta": {"ms": self._ms(began)}}

    async def history(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        _check_own(call, "read its messages")
        hosted = self._node.community(call.community)
        given = call.body["input"]
        since = given.get("since_lamport")
        look = partial(
            conversation,
            own=hosted.own_id,
            peer=given.get("peer"),
            since=-1 if since is None else since,
        )
        entries = await hosted.log.view(look)
        reader = Reader(self._node.key, hosted.community_id, hosted.log.number)
        limit = given.get("limit", _LIMIT)
        page = await hosted.log.store.read(
            lambda c: reader.page(c, entries, limit, newest=since is None)
        )
        meta: dict[str, Any] = {"ms": self._ms(began)}
        if page.more:
            meta["more"] = True
        return {"output": {"messages": page.messages}, "meta": meta}

    async def _send(self, hosted: Hosted, given: Mapping[str, Any]) -> _Sent:
        event = await hosted.log.append(SENT, await self._data(hosted, given))
        return _Sent(event.event_id, event.lamport, given["recipient"], is_delivered=False)

    async def _data(self, hosted: Hosted, given: Mapping[str, Any]) -> dict[str, Any]:
        """A message as the log will hold it: sealed, unless its sender allows otherwise."""
        recipient = given["recipient"]
        attachments = given.get("attachments", [])
        if hosted.level_of(recipient) < Level.MEMBER:
            raise CommunityError(
                Code.NOT_FOUND, "the recipient is no member of this community", where=recipient
            )
        if not given["body"] and not attachments:
            raise CommunityError(Code.BAD_REQUEST, "the message is empty", where="/input/body")
        await asyncio.to_thread(self._check_attachments, attachments)
        if EXTENSION in views.extensions_of(hosted.state, recipient):
            envelope = Envelope(hosted.community_id, hosted.own_id, recipient, given["client_id"])
            letter = Letter(given["body"], attachments, self._chance(NONCE_BYTES))
            return sealing.seal(envelope, letter)
        if not given.get("allow_clear", False):
            raise CommunityError(
                Code.BAD_REQUEST,
                "the recipient's node has never said that it can open sealed messages",
                where=recipient,
                mend="allow_clear sends it so that every member can read it",
            )
        return {name: value for name, value in given.items() if name != "allow_clear"}

    def _check_attachments(self, attachments: list[Mapping[str, str]]) -> None:
        for each in attachments:
            if not self._blobs.has(each["cid"]):
                raise CommunityError(
                    Code.NOT_FOUND,
                    "this node does not have what is attached",
                    where=each["cid"],
                    mend="add it first with `accord file add`",
                )

    def _ms(self, began: float) -> int:
        return int((self._clock.monotonic() - began) * 1000)


async def _sent(hosted: Hosted, client_id: str) -> _Sent | None:
    """What this node has sent under a client id."""
    own = hosted.own_id
    if used("chat", own, client_id) not in hosted.state.content.clients:
        return None
    found = await hosted.log.view(partial(sent_as, own=own, client_id=client_id))
    if found is None:
        return None
    message = found.message
    return _Sent(
        found.event_id, message.lamport, message.recipient, message.delivered_at is not None
    )


def _check_own(call: Call, what: str) -> None:
    if not call.own:
        raise CommunityError(
            Code.UNAUTHORIZED, f"only this node's own clients, on its machine, {what}"
        )
