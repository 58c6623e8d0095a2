"""What the fold reads: the events of one log, in the orders that its stages need.

A history may be a list or a store; the fold streams through it and keeps none of it.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from accord.community.envelope import Event, Position, Stage
from accord.community.envelope.kinds import KINDS

MEMBERSHIP: Final = frozenset(
    name for name, kind in KINDS.items() if kind.stage is Stage.MEMBERSHIP
)
"""The types of events that decide who belongs."""


class Link(NamedTuple):
    """An event as its author's chain sees it.

    Attributes:
        author_seq: Its number; None in an unchained event.
        prev: None for the first, and where the event was pruned and only its stub is here.
    """

    author: str
    author_seq: int | None
    digest: bytes
    prev: str | None
    lamport: int


class History(Protocol):
    """The events of one log, each once."""

    def authors(self) -> Iterator[Link]:
        """Every link, those of one author together, by number and digest."""
        ...

    def author(self, author: str) -> Iterator[Link]:
        """The links of one author, by number and digest."""
        ...

    def membership(self) -> Iterable[Event]:
        """The events of the membership stage, in total order."""
        ...

    def in_order(self, after: Position | None = None) -> Iterator[Event]:
        """Every event behind a position, in total order; pruned ones are left out."""
        ...

    def lamports(self) -> Iterator[int]:
        """The lamports of all events and stubs, ascending."""
        ...


class Memory:
    """A history of events in memory; duplicates fall away by digest."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = {event.digest: event for event in events}
        self._sorted: list[Event] | None = None

    def add(self, events: Iterable[Event]) -> list[Event]:
        """Add events and return those that are new."""
        fresh = []
        for event in events:
            if event.digest not in self._events:
                self._events[event.digest] = event
                fresh.append(event)
        if fresh:
            self._sorted = None
        return fresh

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._events

    def __len__(self) -> int:
        return len(self._events)

    def authors(self) -> Iterator[Link]:
        """Every link, those of one author together, by number and digest."""
        return iter(sorted(map(_link, self._events.values()), key=_chained))

    def author(self, author: str) -> Iterator[Link]:
        """The links of one author, by number and digest."""
        links = [_link(event) for event in self._events.values() if event.author == author]
        return iter(sorted(links, key=_chained))

    def membership(self) -> Iterator[Event]:
        """The events of the membership stage, in total order."""
        return (event for event in self.in_order() if event.event_type in MEMBERSHIP)

    def in_order(self, after: Position | None = None) -> Iterator[Event]:
        """Every event behind a position, in total order."""
        if self._sorted is None:
            self._sorted = sorted(self._events.values(), key=_position)
        if after is None:
            return iter(self._sorted)
        return (event for event in self._sorted if event.position > after)

    def lamports(self) -> Iterator[int]:
        """The lamports of all events, ascending."""
        return (event.lamport for event in self.in_order())


def _link(event: Event) -> Link:
    return Link(event.author, event.author_seq, event.digest, event.prev, event.lamport)


def _chained(link: Link) -> tuple[str, int, bytes]:
    return link.author, link.author_seq or 0, link.digest


def _position(event: Event) -> tuple[int, str, bytes]:
    return event.lamport, event.event_id, event.digest
