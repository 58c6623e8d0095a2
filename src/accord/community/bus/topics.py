"""Publish and subscribe: topics (section 8), their audiences, and `GET /pubsub/v1/subscribe`.

Each topic keeps its last few messages with their numbers, so a slow listener sees that it missed
some. A long-poll's answer is signed; messages of an event stream carry their author's signature.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from accord.community.bus.exchange import (
    AdmittedRequest,
    AnswerSigner,
    RequestContext,
)
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import wire
from accord.community.rules.checks import check_membership
from accord.community.rules.formats import Level
from accord.community.settings import BusSettings
from accord.kernel import canonical, signing
from accord.kernel.clock import Clock
from accord.web import sse

MAX_TOPIC_MESSAGES: Final = 256
MAX_TOPIC_BYTES: Final = 1024 * 1024
_MAX_TOPICS: Final = 4096
_CHAT: Final = "chat.message."


class Audience(Enum):
    """Who may subscribe to a topic."""

    MEMBERS = "every member"
    ANCHORS = "anchors"
    RECIPIENT = "the node that the topic names"
    OWN = "this node's own clients on this machine"


TOPICS: Final[Mapping[str, Audience]] = {
    "community.member.added": Audience.MEMBERS,
    "community.member.revoked": Audience.MEMBERS,
    "node.manifest.updated": Audience.MEMBERS,
    "marketplace.post.created": Audience.MEMBERS,
    "marketplace.post.expired": Audience.MEMBERS,
    "chat.message.<recipient>": Audience.RECIPIENT,
    "emergency.mode.changed": Audience.OWN,
    "federation.peer.added": Audience.ANCHORS,
    "capability.registered": Audience.OWN,
    "capability.deregistered": Audience.OWN,
}
"""Every topic: section 8 of the specification."""


@dataclass(frozen=True, slots=True)
class TopicListener:
    """A subscriber; `own` is the node's own client on this machine."""

    node_id: str
    level: Level
    own: bool = False


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """One message; `seq` also rises across restarts, `text` is the payload in canonical JSON."""

    seq: int
    data: Any
    text: bytes


@dataclass(slots=True)
class _Topic:
    last_seq: int
    messages: deque[TopicMessage] = field(default_factory=deque)
    size: int = 0
    waiting: set[asyncio.Future[None]] = field(default_factory=set)


def audience_of(topic: str) -> Audience:
    """The audience of a topic; `not_found` if there is no such topic."""
    if topic.startswith(_CHAT):
        try:
            signing.parse_id(topic.removeprefix(_CHAT))
        except signing.SigningError:
            raise _unknown(topic) from None
        return Audience.RECIPIENT
    found = TOPICS.get(topic)
    if found is None:
        raise _unknown(topic)
    return found


def check_listener(topic: str, listener: TopicListener) -> None:
    """Raise `not_found` for an unknown topic, `unauthorized` if the listener may not hear it."""
    who = audience_of(topic)
    if who is Audience.OWN:
        allowed = listener.own
    elif who is Audience.RECIPIENT:
        allowed = topic == _CHAT + listener.node_id
    else:
        allowed = listener.level >= (Level.ANCHOR if who is Audience.ANCHORS else Level.MEMBER)
    if not allowed:
        raise CommunityError(
            Code.UNAUTHORIZED, f"only {who.value} may subscribe to this", where=topic[:80]
        )


class Topics:
    """The topics of a node, for each of its communities."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._topics: OrderedDict[tuple[str, str], _Topic] = OrderedDict()

    def publish(self, topic: str, data: Any, *, community: str = "") -> int:
        """Publish a message and return its number; `not_found` if there is no such topic."""
        try:
            text = canonical.encode(data)
        except canonical.CanonicalError as error:
            raise bad_request(str(error), where=topic[:80]) from None
        # A copy: the buffer of the encoder is several times as large, and this is kept.
        text = memoryview(text).tobytes()
        found = self._topic(topic, community)
        found.last_seq += 1
        found.messages.append(TopicMessage(found.last_seq, data, text))
        found.size += len(text)
        while len(found.messages) > MAX_TOPIC_MESSAGES or found.size > MAX_TOPIC_BYTES:
            found.size -= len(found.messages.popleft().text)
        for waiter in found.waiting:
            if not waiter.done():
                waiter.set_result(None)
        return found.last_seq

    def last_seq(self, topic: str, *, community: str = "") -> int:
        """The number of the last message, from which a new listener starts."""
        return self._topic(topic, community).last_seq

    async def following(
        self, topic: str, last_seq: int, *, community: str = "", timeout_seconds: float
    ) -> Sequence[TopicMessage]:
        """The messages after `last_seq`, as soon as there is one; none after the timeout."""
        found = self._topic(topic, community)
        waiter: asyncio.Future[None] | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                while found.last_seq <= last_seq:
                    waiter = asyncio.get_running_loop().create_future()
                    found.waiting.add(waiter)
                    await waiter
                    found.waiting.discard(waiter)
        except TimeoutError:
            return ()
        finally:
            if waiter is not None:
                found.waiting.discard(waiter)
        return tuple(message for message in found.messages if message.seq > last_seq)

    def _topic(self, topic: str, community: str) -> _Topic:
        key = ("" if audience_of(topic) is Audience.OWN else community, topic)
        found = self._topics.get(key)
        if found is None:
            # From the clock, so that numbers also rise across restarts.
            found = self._topics[key] = _Topic(int(self._clock.now() * 1000))
            if len(self._topics) > _MAX_TOPICS:
                self._forget_one()
        self._topics.move_to_end(key)
        return found

    def _forget_one(self) -> None:
        for key, topic in self._topics.items():
            if not topic.waiting:
                del self._topics[key]
                return


def _unknown(topic: str) -> CommunityError:
    return CommunityError(
        Code.NOT_FOUND,
        f"there is no topic {topic[:80]!r}",
        mend="see section 8 of the specification for the topics that there are",
    )


MAX_POLL_SECONDS: Final = 60
DEFAULT_POLL_SECONDS: Final = 30
_KEEP_ALIVE_SECONDS: Final = 15.0
_PARAMETERS: Final = frozenset({"topic", "last_seq", "timeout"})
_PER_CALLER: Final = 64


@dataclass(slots=True, eq=False)
class SubscriptionServer:
    """Serves subscriptions."""

    topics: Topics
    signer: AnswerSigner
    settings: BusSettings
    _listening: Counter[str] = field(default_factory=Counter)

    @property
    def listening(self) -> int:
        """How many subscriptions there are."""
        return self._listening.total()

    async def serve(
        self, http: HttpRequest, guest: AdmittedRequest, visit: RequestContext
    ) -> Response:
        """Answer a subscription; raises if it is malformed, not allowed, or one too many."""
        query = http.query_params.multi_items()
        asked = dict(query)
        if len(asked) != len(query) or not asked.keys() <= _PARAMETERS or "topic" not in asked:
            raise bad_request("expected topic and, if wanted, last_seq and timeout, each once")
        topic = asked["topic"]
        _check_subscriber(topic, guest)
        seconds = _number(asked, "timeout", DEFAULT_POLL_SECONDS, MAX_POLL_SECONDS)
        community = guest.request.community
        last_seq = _number(
            asked, "last_seq", self.topics.last_seq(topic, community=community), 2**53 - 1
        )
        if sse.MEDIA_TYPE in http.headers.get("accept", ""):
            return self._events(topic, last_seq, guest)
        async with self._counted(guest.request.caller):
            body = await sse.while_connected(
                http.receive, self._poll(topic, last_seq, guest, seconds)
            )
        return self.signer.answer(visit, body).response()

    async def _poll(
        self, topic: str, last_seq: int, guest: AdmittedRequest, seconds: float
    ) -> dict[str, Any]:
        found = await self.topics.following(
            topic, last_seq, community=guest.request.community, timeout_seconds=seconds
        )
        _check_subscriber(topic, guest)
        if not found:
            return {"timeout": True}
        return {
            "topic": topic,
            "messages": [{"seq": message.seq, "data": message.data} for message in found],
            "last_seq": found[-1].seq,
            "missed": 0 < last_seq < found[0].seq - 1,
        }

    def _events(self, topic: str, last_seq: int, guest: AdmittedRequest) -> Response:
        named = {wire.REQUEST_ID: guest.request.request_id, wire.FROM: self.signer.node_id}

        async def parts() -> AsyncGenerator[bytes, None]:
            seq = last_seq
            yield b": listening\n\n"
            with suppress(CommunityError):  # it has lost its right to this topic
                while True:
                    found = await self.topics.following(
                        topic,
                        seq,
                        community=guest.request.community,
                        timeout_seconds=_KEEP_ALIVE_SECONDS,
                    )
                    _check_subscriber(topic, guest)
                    if not found:
                        yield b": here\n\n"
                    for message in found:
                        seq = message.seq
                        yield sse.write_event(message.text, event="message", seq=seq)

        return sse.EventStream(
            parts(),
            headers=named,
            held=self._counted(guest.request.caller),
            stall_seconds=self.settings.stall_seconds,
        )

    @asynccontextmanager
    async def _counted(self, caller: str) -> AsyncIterator[None]:
        most = self.settings.max_listeners
        if self.listening >= most or self._listening[caller] >= max(1, most // _PER_CALLER):
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "too many subscriptions are open",
                details={"retry_after_ms": 5000},
            )
        async with sse.counted(self._listening, caller):
            yield


def _check_subscriber(topic: str, guest: AdmittedRequest) -> None:
    _, level = check_membership(guest.community, guest.request.caller)
    check_listener(topic, TopicListener(guest.request.caller, level, guest.own))


def _number(asked: dict[str, str], name: str, default: int, most: int) -> int:
    text = asked.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= most):
        raise bad_request(f"expected a whole number from 0 to {most}", where=name)
    return int(text)
