"""What a node offers: capabilities and the functions that serve them.

Owns the offers and how many calls each has in hand. It checks nothing about callers and never runs
a handler; `calling` does.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from accord.community.bus.topics import Topics
from accord.community.envelope.names import Level, Version, check_registrable
from accord.community.envelope.schemas import Descriptor
from accord.community.errors import Code, CommunityError

DEFAULT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stream: the name of its event, and its data."""

    event: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that passed every check, as its handler sees it.

    Attributes:
        caller: Who calls.
        level: How far the community trusts the caller.
        own: Whether it is this node's own client on this machine.
        community: In which community.
        body: The request, which keeps the capability's schema.
        deadline: When the caller is told `timeout`, by the node's monotonic clock.
        trace_id: The trace that it belongs to: the caller's, or one that began here.
        gone: Set when nobody waits for the answer any more. The handler's task is cancelled then,
            too; this is for work that it has given to a thread.
    """

    capability: str
    request_id: str
    caller: str
    level: Level
    own: bool
    community: str
    body: Mapping[str, Any]
    deadline: float
    trace_id: str
    gone: threading.Event = field(default_factory=threading.Event)


Produced: TypeAlias = Mapping[str, Any] | AsyncIterator[Frame]
Handler: TypeAlias = Callable[[Call], Awaitable[Produced] | AsyncIterator[Frame]]
"""An async function that returns the answer or a stream of frames, or an async generator of frames.

The last frame of a stream is `done`. A refusal is a `CommunityError`.
"""


@dataclass(slots=True, eq=False)
class Offer:
    """A registered capability.

    Attributes:
        seconds: How long an answer, or the next frame of a stream, may take.
        in_hand: How many calls are being served.
    """

    descriptor: Descriptor
    handler: Handler
    params: Mapping[str, Any]
    max_concurrent: int
    seconds: float
    in_hand: int = 0

    @property
    def repeatable(self) -> bool:
        """Whether a request that is heard again gets its answer again."""
        return self.descriptor.idempotent and not self.descriptor.streams

    def listing(self) -> dict[str, Any]:
        """How the node's manifest lists it."""
        return self.descriptor.offer(self.params, self.max_concurrent)


class Registry:
    """The offers of a node; its own clients hear of every change."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._offers: dict[str, dict[str, Offer]] = {}

    def register(
        self,
        descriptor: Descriptor,
        handler: Handler,
        *,
        params: Mapping[str, Any] | None = None,
        max_concurrent: int = 16,
        seconds: float = DEFAULT_SECONDS,
    ) -> Offer:
        """Offer a capability.

        Raises:
            CommunityError: It is offered already, or its name may not be used: `bad_request`.
        """
        check_registrable(descriptor.name)
        versions = self._offers.setdefault(descriptor.name, {})
        if descriptor.key in versions:
            raise CommunityError(Code.BAD_REQUEST, f"{descriptor.key} is offered already")
        offer = Offer(descriptor, handler, params or {}, max_concurrent, seconds)
        versions[descriptor.key] = offer
        self._topics.publish("capability.registered", offer.listing())
        return offer

    def deregister(self, key: str) -> None:
        """Offer `name@version` no more; calls in hand are finished.

        Raises:
            CommunityError: It was not offered: `not_found`.
        """
        name, _, version = key.partition("@")
        versions = self._offers.get(name, {})
        if versions.pop(key, None) is None:
            raise CommunityError(Code.NOT_FOUND, f"{key[:120]} is not offered")
        if not versions:
            del self._offers[name]
        self._topics.publish("capability.deregistered", {"name": name, "version": version})

    def serving(self, name: str, least: Version | None) -> Offer | None:
        """The newest offer that serves a caller which asks for `name@>=least`."""
        fitting = [
            offer
            for offer in self._offers.get(name, {}).values()
            if least is None or offer.descriptor.version.satisfies(least)
        ]
        return max(fitting, key=lambda offer: offer.descriptor.version, default=None)

    def descriptors(self, name: str) -> list[Descriptor]:
        """Every offered version of a capability."""
        return [offer.descriptor for offer in self._offers.get(name, {}).values()]

    def listings(self) -> list[dict[str, Any]]:
        """Everything offered, as the node's manifest lists it."""
        return [
            self._offers[name][key].listing()
            for name in sorted(self._offers)
            for key in sorted(self._offers[name])
        ]

    @property
    def in_hand(self) -> int:
        """How many calls are being served."""
        return sum(
            offer.in_hand for versions in self._offers.values() for offer in versions.values()
        )
