"""Pub-sub: what happens now, told to whoever listens, in addition to what the log keeps.

Owns the topics of section 8, who may hear which, and for each topic the last few messages with
their numbers. It never waits for a listener: one that is too slow misses messages and can see that
it did. It knows nothing of HTTP.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical, signing
from accord.kernel.clock import Clock

MAX_MESSAGES: Final = 256
MAX_BYTES: Final = 1024 * 1024
_MAX_TOPICS: Final = 4096
_CHAT: Final = "chat.message."


class Audience(Enum):
    """Who may hear a topic."""

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
class Listener:
    """Who wants to hear.

    Attributes:
        own: Whether it is the node itself, on this machine.
    """

    node_id: str
    level: Level
    own: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a topic.

    Attributes:
        seq: Its number; numbers rise, also over a restart.
        data: The payload.
        text: The payload in canonical JSON.
    """

    seq: int
    data: Any
    text: bytes


@dataclass(slots=True)
class _Topic:
    last_seq: int
    messages: deque[Message] = field(default_factory=deque)
    size: int = 0
    waiting: set[asyncio.Future[None]] = field(default_factory=set)


def audience(topic: str) -> Audience:
    """Who may hear a topic.

    Raises:
        CommunityError: There is no such topic: `not_found`.
    """
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


def check_listener(topic: str, listener: Listener) -> None:
    """Check that somebody may hear a topic.

    Raises:
        CommunityError: `not_found` where there is no such topic, else `unauthorized`.
    """
    who = audience(topic)
    if who is Audience.OWN:
        allowed = listener.own
    elif who is Audience.RECIPIENT:
        allowed = topic == _CHAT + listener.node_id
    else:
        allowed = listener.level >= (Level.ANCHOR if who is Audience.ANCHORS else Level.MEMBER)
    if not allowed:
        raise CommunityError(Code.UNAUTHORIZED, f"only {who.value} may hear this", where=topic[:80])


class Topics:
    """The topics of a node, for each of its communities."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._topics: OrderedDict[tuple[str, str], _Topic] = OrderedDict()

    def publish(self, topic: str, data: Any, *, community: str = "") -> int:
        """Tell whoever listens, and return the message's number.

        Raises:
            CommunityError: There is no such topic (`not_found`), or the payload is not JSON.
        """
        try:
            text = canonical.encode(data)
        except canonical.CanonicalError as error:
            raise CommunityError(Code.BAD_REQUEST, str(error), where=topic[:80]) from None
        # What the encoder gives holds room for several times as much, and this is kept.
        text = memoryview(text).tobytes()
        found = self._topic(topic, community)
        found.last_seq += 1
        found.messages.append(Message(found.last_seq, data, text))
        found.size += len(text)
        while len(found.messages) > MAX_MESSAGES or found.size > MAX_BYTES:
            found.size -= len(found.messages.popleft().text)
        for waiter in found.waiting:
            if not waiter.done():
                waiter.set_result(None)
        return found.last_seq

    def last_seq(self, topic: str, *, community: str = "") -> int:
        """The number after which a listener that comes now hears everything."""
        return self._topic(topic, community).last_seq

    async def following(
        self, topic: str, last_seq: int, *, community: str = "", timeout_seconds: float
    ) -> Sequence[Message]:
        """The messages after `last_seq`, as soon as there is one; none when the time is over."""
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
        key = ("" if audience(topic) is Audience.OWN else community, topic)
        found = self._topics.get(key)
        if found is None:
            # From the clock, so that numbers rise over a restart and nobody waits for old ones.
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
