"""What the fold reads: the events of one log, in the orders that its stages need.

A history may be a list or a store; the fold streams through it and keeps none of it.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from accord.community.envelope import Event, Position, Stage
from accord.community.envelope.kinds import KINDS

MEMBERSHIP: Final = frozenset(
    name for name, kind in KINDS.items() if kind.stage is Stage.MEMBERSHIP
)
"""The types of events that decide who belongs."""

_FEW: Final = 1000
_position: Final[Callable[[Any], Any]] = attrgetter("lamport", "event_id", "digest")


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
    """The events of one log, each once, and of no other community's."""

    def authors(self) -> Iterator[Link]:
        """Every link, those of one author together, by number and digest."""
        ...

    def author(self, author: str, after: int = 0) -> Iterator[Link]:
        """The links of one author, by number and digest; or only those above a number."""
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
        self._events: dict[bytes, Event] = {}
        self._by_author: dict[str, list[Event]] = {}
        self._unsorted: set[str] = set()
        self._sorted: list[Event] | None = None
        self.add(events)

    def add(self, events: Iterable[Event]) -> list[Event]:
        """Add events and return those that are new."""
        fresh = []
        for event in events:
            if event.digest not in self._events:
                self._events[event.digest] = event
                fresh.append(event)
        if len(fresh) > _FEW:
            self._sorted = None
            self._unsorted.update(event.author for event in fresh)
        for event in fresh:
            chain = self._by_author.setdefault(event.author, [])
            if event.author in self._unsorted:
                chain.append(event)
            else:
                insort(chain, event, key=_in_chain)
            if self._sorted is not None:
                insort(self._sorted, event, key=_position)
        return fresh

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._events

    def __len__(self) -> int:
        return len(self._events)

    def authors(self) -> Iterator[Link]:
        """Every link, those of one author together, by number and digest."""
        for author in sorted(self._by_author):
            yield from self.author(author)

    def author(self, author: str, after: int = 0) -> Iterator[Link]:
        """The links of one author, by number and digest; or only those above a number."""
        found = self._by_author.get(author, [])
        if author in self._unsorted:
            found.sort(key=_in_chain)
            self._unsorted.remove(author)
        start = bisect_right(found, after, key=_number) if after else 0
        return map(_link, islice(found, start, None))

    def membership(self) -> Iterator[Event]:
        """The events of the membership stage, in total order."""
        return (event for event in self.in_order() if event.event_type in MEMBERSHIP)

    def in_order(self, after: Position | None = None) -> Iterator[Event]:
        """Every event behind a position, in total order."""
        if self._sorted is None:
            self._sorted = sorted(self._events.values(), key=_position)
        start = 0 if after is None else bisect_right(self._sorted, after, key=_position)
        return islice(self._sorted, start, None)

    def lamports(self) -> Iterator[int]:
        """The lamports of all events, ascending."""
        return map(attrgetter("lamport"), self.in_order())


def _link(event: Event) -> Link:
    return Link(event.author, event.author_seq, event.digest, event.prev, event.lamport)


def _number(event: Event) -> int:
    """Its number in the chain; those that have none come first."""
    return event.author_seq or 0


def _in_chain(event: Event) -> tuple[int, bytes]:
    return _number(event), event.digest
