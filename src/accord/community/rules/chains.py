"""The events of a log as the fold reads them, and each author's chain (stage a of the fold).

A chain is summarised in a few numbers: how far it reaches without a gap, where it forks, where it
breaks. The chain verdict on any of its events follows from these.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from accord.community.rules.event import MAX_LAMPORT, Event, Position
from accord.community.rules.formats import EVENT_TYPES, Stage
from accord.community.rules.verdicts import VERDICTS, Verdict

MEMBERSHIP_TYPES: Final = frozenset(
    name for name, kind in EVENT_TYPES.items() if kind.stage is Stage.MEMBERSHIP
)
"""The types of events that decide who belongs."""

_FEW: Final = 1000
_position: Final[Callable[[Any], Any]] = attrgetter("lamport", "event_id", "digest")


class ChainLink(NamedTuple):
    """An event's link in its author's chain.

    `author_seq` is None in an unchained event; `prev` is None for the first event and for a stub.
    """

    author: str
    author_seq: int | None
    digest: bytes
    prev: str | None
    lamport: int


class History(Protocol):
    """The events of one log, each once."""

    def authors(self) -> Iterator[ChainLink]:
        """Every link, grouped by author, ordered by number and digest."""
        ...

    def author(self, author: str, after: int = 0) -> Iterator[ChainLink]:
        """The links of one author by number and digest, optionally only above a number."""
        ...

    def membership(self) -> Iterable[Event]:
        """The events of the membership stage, in total order."""
        ...

    def in_order(self, after: Position | None = None) -> Iterator[Event]:
        """Every event after a position, in total order, without pruned ones."""
        ...

    def lamports(self) -> Iterator[int]:
        """The lamports of all events and stubs, ascending."""
        ...


class MemoryHistory:
    """A history in memory; duplicates are dropped by digest."""

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

    def authors(self) -> Iterator[ChainLink]:
        """Every link, grouped by author, ordered by number and digest."""
        for author in sorted(self._by_author):
            yield from self.author(author)

    def author(self, author: str, after: int = 0) -> Iterator[ChainLink]:
        """The links of one author by number and digest, optionally only above a number."""
        found = self._by_author.get(author, [])
        if author in self._unsorted:
            found.sort(key=_in_chain)
            self._unsorted.remove(author)
        start = bisect_right(found, after, key=_number) if after else 0
        return map(_link, islice(found, start, None))

    def membership(self) -> Iterator[Event]:
        """The events of the membership stage, in total order."""
        return (event for event in self.in_order() if event.event_type in MEMBERSHIP_TYPES)

    def in_order(self, after: Position | None = None) -> Iterator[Event]:
        """Every event after a position, in total order."""
        if self._sorted is None:
            self._sorted = sorted(self._events.values(), key=_position)
        start = 0 if after is None else bisect_right(self._sorted, after, key=_position)
        return islice(self._sorted, start, None)

    def lamports(self) -> Iterator[int]:
        """The lamports of all events, ascending."""
        return map(attrgetter("lamport"), self.in_order())


def _link(event: Event) -> ChainLink:
    return ChainLink(event.author, event.author_seq, event.digest, event.prev, event.lamport)


def _number(event: Event) -> int:
    return event.author_seq or 0


def _in_chain(event: Event) -> tuple[int, bytes]:
    return _number(event), event.digest


MAX_GAP: Final = 1_000_000
"""How far a lamport may lie above all that precedes it: beyond is quarantined."""

_GAP: Final = VERDICTS["chain.gap"]
_EQUIVOCATION: Final = VERDICTS["equivocation"]
_BROKEN: Final = VERDICTS["chain.broken"]
_LAMPORT: Final = VERDICTS["chain.lamport"]


@dataclass(frozen=True, slots=True)
class Chain:
    """The summary of one author's chain.

    Attributes:
        head_seq: The last number up to which nothing is missing or broken.
        head_hash: The event there; None in an empty chain.
        head_lamport: Its lamport.
        seen_seq: The greatest number seen; after the head there is a gap, a fork or a break.
        fork: The first number with two events, and the two smallest digests, in order.
        cut: The number at which the chain breaks, and how.
    """

    head_seq: int = 0
    head_hash: str | None = None
    head_lamport: int = -1
    seen_seq: int = 0
    fork: tuple[int, bytes, bytes] | None = None
    cut: tuple[int, Verdict] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the chain has no gap, fork or break."""
        return self.fork is None and self.cut is None and self.head_seq == self.seen_seq

    @property
    def settled(self) -> int:
        """The last number up to which every event exists exactly once."""
        return self.head_seq if self.fork is None else min(self.head_seq, self.fork[0] - 1)

    def verdict(self, seq: int, digest: bytes) -> Verdict | None:
        """The verdict that the chain imposes on an event; None if it is in order."""
        if self.fork is not None:
            at, winner, _ = self.fork
            if seq > at or (seq == at and digest != winner):
                return _EQUIVOCATION
        if self.cut is not None and seq >= self.cut[0]:
            return self.cut[1]
        return _GAP if seq > self.head_seq else None

    def followed_by(self, link: ChainLink) -> "Chain | None":
        """The chain with one more event at its end; None if that is not its successor."""
        if (
            not self.is_whole
            or link.author_seq != self.head_seq + 1
            or link.prev != self.head_hash
            or link.lamport <= self.head_lamport
        ):
            return None
        return Chain(link.author_seq, _hash(link), link.lamport, link.author_seq)


_EMPTY: Final = Chain()


def chain_verdict(event: Event, chains: Mapping[str, Chain]) -> Verdict | None:
    """The verdict that the author's chain imposes on an event; None if it is in order."""
    if event.author_seq is None:
        return None
    chain = chains.get(event.author)
    return None if chain is None else chain.verdict(event.author_seq, event.digest)


def all_chains(links: Iterable[ChainLink], upto: int = MAX_LAMPORT) -> dict[str, Chain]:
    """The chains of all authors up to a lamport, without quarantined events."""
    chains = {
        author: chain_of(of_author, upto)
        for author, of_author in groupby(links, key=attrgetter("author"))
    }
    return {author: chain for author, chain in chains.items() if chain.seen_seq}


def chain_of(links: Iterable[ChainLink], upto: int = MAX_LAMPORT, behind: Chain = _EMPTY) -> Chain:
    """The chain of one author up to a lamport, from its links by number and digest.

    With the earlier chain as `behind`, only the links above its head are needed, if all new ones
    are among them.
    """
    head: ChainLink | None = None
    head_seq = seen_seq = behind.head_seq
    head_hash, head_lamport = behind.head_hash, behind.head_lamport
    fork = behind.fork if behind.fork is not None and behind.fork[0] <= head_seq else None
    cut: tuple[int, Verdict] | None = None
    last: ChainLink | None = None
    for link in links:
        seq = link.author_seq
        if seq is None or link.lamport > upto:
            continue
        if last is not None and seq == last.author_seq:
            if fork is None and link.digest != last.digest:
                fork = seq, last.digest, link.digest
            continue
        last, seen_seq = link, seq
        if fork is not None or cut is not None or seq != head_seq + 1:
            continue
        if head is not None:
            head_hash = _hash(head)
        # A stub has no prev; a retention floor vouches for it.
        if link.prev != head_hash and (link.prev is not None or seq == 1):
            cut = seq, _BROKEN
        elif link.lamport <= head_lamport:
            cut = seq, _LAMPORT
        else:
            head, head_seq, head_lamport = link, seq, link.lamport
    if head is not None:
        head_hash = _hash(head)
    return Chain(head_seq, head_hash, head_lamport, seen_seq, fork, cut)


def reachable_lamport(lamports: Iterable[int], start: int = 0) -> int:
    """The greatest lamport below the first gap above `start` that quarantines what follows."""
    reached = start
    for lamport in lamports:
        if lamport > reached:
            if lamport - reached > MAX_GAP:
                break
            reached = lamport
    return reached


def _hash(link: ChainLink) -> str:
    return "blake3:" + link.digest.hex()
