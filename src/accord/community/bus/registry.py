"""The capabilities that a node offers, and their handlers.

Counts the calls in progress of each. Callers are checked and handlers run in `calls`.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from accord.community.bus.topics import Topics
from accord.community.errors import Code, CommunityError
from accord.community.rules.capabilities import CapabilityDescriptor, Version, check_registrable
from accord.community.rules.formats import Level

DEFAULT_CALL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stream: event name and data."""

    event: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call that passed every check, as its handler sees it.

    Attributes:
        own: Whether it is from this node's own client on this machine.
        body: The request, valid by the capability's schema.
        deadline: When the caller gets `timeout`, by the node's monotonic clock.
        gone: Set when nobody waits for the answer any more. The handler's task is cancelled too;
            this is for work in threads.
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

    def check_own(self, what: str, mend: str | None = None) -> None:
        """Raise `unauthorized` unless the node's own client calls.

        `what` completes "only this node's own clients"; `mend` is what others can do instead.
        """
        if not self.own:
            raise CommunityError(
                Code.UNAUTHORIZED,
                f"only this node's own clients, on its machine, {what}",
                mend=mend,
            )


Produced: TypeAlias = Mapping[str, Any] | AsyncIterator[Frame]
Handler: TypeAlias = Callable[[Call], Awaitable[Produced] | AsyncIterator[Frame]]
"""An async function that returns the answer or a stream of frames, or an async generator of frames.

The last frame of a stream is `done`. A refusal is a `CommunityError`.
"""


@dataclass(slots=True, eq=False)
class Offer:
    """A registered capability.

    `seconds` is how long an answer, or the next frame of a stream, may take; `in_hand` counts the
    calls in progress.
    """

    descriptor: CapabilityDescriptor
    handler: Handler
    params: Mapping[str, Any]
    max_concurrent: int
    seconds: float
    in_hand: int = 0

    @property
    def repeatable(self) -> bool:
        """Whether a repeated request gets its answer again."""
        return self.descriptor.idempotent and not self.descriptor.streams

    def listing(self) -> dict[str, Any]:
        """The entry in the node's manifest."""
        return self.descriptor.offer(self.params, self.max_concurrent)


class Registry:
    """The offers of a node; changes are published to its own clients."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._offers: dict[str, dict[str, Offer]] = {}

    def register(
        self,
        descriptor: CapabilityDescriptor,
        handler: Handler,
        *,
        params: Mapping[str, Any] | None = None,
        max_concurrent: int = 16,
        seconds: float = DEFAULT_CALL_SECONDS,
    ) -> Offer:
        """Offer a capability; `bad_request` if it is offered already or its name is not allowed."""
        check_registrable(descriptor.name)
        versions = self._offers.setdefault(descriptor.name, {})
        if descriptor.key in versions:
            raise CommunityError(Code.BAD_REQUEST, f"{descriptor.key} is offered already")
        offer = Offer(descriptor, handler, params or {}, max_concurrent, seconds)
        versions[descriptor.key] = offer
        self._topics.publish("capability.registered", offer.listing())
        return offer

    def deregister(self, key: str) -> None:
        """Withdraw `name@version`, finishing running calls; `not_found` if it is not offered."""
        name, _, version = key.partition("@")
        versions = self._offers.get(name, {})
        if versions.pop(key, None) is None:
            raise CommunityError(Code.NOT_FOUND, f"{key[:120]} is not offered")
        if not versions:
            del self._offers[name]
        self._topics.publish("capability.deregistered", {"name": name, "version": version})

    def serving(self, name: str, least: Version | None) -> Offer | None:
        """The newest offer that satisfies `name@>=least`."""
        fitting = [
            offer
            for offer in self._offers.get(name, {}).values()
            if least is None or offer.descriptor.version.satisfies(least)
        ]
        return max(fitting, key=lambda offer: offer.descriptor.version, default=None)

    def descriptors(self, name: str) -> list[CapabilityDescriptor]:
        """Every offered version of a capability."""
        return [offer.descriptor for offer in self._offers.get(name, {}).values()]

    def listings(self) -> list[dict[str, Any]]:
        """All entries for the node's manifest."""
        return [
            self._offers[name][key].listing()
            for name in sorted(self._offers)
            for key in sorted(self._offers[name])
        ]

    @property
    def in_hand(self) -> int:
        """How many calls are in progress."""
        return sum(
            offer.in_hand for versions in self._offers.values() for offer in versions.values()
        )
