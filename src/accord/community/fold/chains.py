"""Stage (a): what each author signed, one after the other, without asking whether it was allowed.

An author's chain is summed up in a few numbers, however long it is: how far it reaches without a
gap, where it forks, where it breaks. From these the standing of any of its events follows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from accord.community.envelope import Event
from accord.community.fold.history import Link
from accord.community.fold.verdicts import VERDICTS, Verdict

MAX_GAP: Final = 1_000_000
"""How far a lamport may lie above all that precedes it: beyond is quarantined."""

_GAP: Final = VERDICTS["chain.gap"]
_EQUIVOCATION: Final = VERDICTS["equivocation"]
_BROKEN: Final = VERDICTS["chain.broken"]
_LAMPORT: Final = VERDICTS["chain.lamport"]


@dataclass(frozen=True, slots=True)
class Chain:
    """The chain of one author.

    Attributes:
        head_seq: The last number up to which nothing is missing or broken.
        head_hash: The event that stands there; None before the first.
        head_lamport: Its lamport.
        seen_seq: The greatest number seen; beyond the head there is a gap, a fork or a break.
        fork: The first number that two events bear, and the two smallest of those, in order.
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
        """Whether everything seen stands."""
        return self.fork is None and self.cut is None and self.head_seq == self.seen_seq

    def verdict(self, seq: int, digest: bytes) -> Verdict | None:
        """Why an event of the chain does not stand; None when it does."""
        if self.fork is not None:
            at, winner, _ = self.fork
            if seq > at or (seq == at and digest != winner):
                return _EQUIVOCATION
        if self.cut is not None and seq >= self.cut[0]:
            return self.cut[1]
        return _GAP if seq > self.head_seq else None

    def followed_by(self, link: Link) -> "Chain | None":
        """The chain with one more event at its end; None when it is not so simple."""
        if (
            not self.is_whole
            or link.author_seq != self.head_seq + 1
            or link.prev != self.head_hash
            or link.lamport <= self.head_lamport
        ):
            return None
        return Chain(link.author_seq, _hash(link), link.lamport, link.author_seq)


def verdict_of(event: Event, chains: dict[str, Chain]) -> Verdict | None:
    """Why the author's chain does not let an event stand; None when it does."""
    if event.author_seq is None:
        return None
    return chains[event.author].verdict(event.author_seq, event.digest)


def all_chains(links: Iterable[Link]) -> dict[str, Chain]:
    """Sum up the chains of all authors."""
    return {
        author: chain_of(of_author)
        for author, of_author in groupby(links, key=lambda link: link.author)
    }


def chain_of(links: Iterable[Link]) -> Chain:
    """Sum up the chain of one author, whose links come by number and digest."""
    chain = Chain()
    chained = (link for link in links if link.author_seq is not None)
    for seq, same in groupby(chained, key=lambda link: link.author_seq):
        assert seq is not None
        chain = _extended(chain, seq, *_first_two(same))
    return chain


def reach(lamports: Iterable[int], start: int = 0) -> int:
    """The greatest lamport below the first gap above `start` that quarantines what follows."""
    reached = start
    for lamport in lamports:
        if lamport - reached > MAX_GAP:
            break
        reached = max(reached, lamport)
    return reached


def _first_two(links: Iterator[Link]) -> tuple[Link, Link | None]:
    first = next(links)
    second = next((link for link in links if link.digest != first.digest), None)
    return first, second


def _extended(chain: Chain, seq: int, link: Link, twin: Link | None) -> Chain:
    if chain.fork is not None:
        return replace(chain, seen_seq=seq)
    fork = None if twin is None else (seq, link.digest, twin.digest)
    if chain.cut is not None or seq != chain.head_seq + 1:
        return replace(chain, seen_seq=seq, fork=fork)
    # A stub has lost its prev; a retention floor vouches for it.
    if link.prev != chain.head_hash and not (link.prev is None and seq > 1):
        return replace(chain, seen_seq=seq, fork=fork, cut=(seq, _BROKEN))
    if link.lamport <= chain.head_lamport:
        return replace(chain, seen_seq=seq, fork=fork, cut=(seq, _LAMPORT))
    return Chain(seq, _hash(link), link.lamport, seq, fork)


def _hash(link: Link) -> str:
    return "blake3:" + link.digest.hex()
