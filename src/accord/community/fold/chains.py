"""Stage (a): what each author signed, one after the other, without asking whether it was allowed.

An author's chain is summed up in a few numbers, however long it is: how far it reaches without a
gap, where it forks, where it breaks. From these the standing of any of its events follows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from accord.community.envelope import MAX_LAMPORT, Event
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

    @property
    def settled(self) -> int:
        """The last number up to which everything stands, and is there once."""
        return self.head_seq if self.fork is None else min(self.head_seq, self.fork[0] - 1)

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


_EMPTY: Final = Chain()


def verdict_of(event: Event, chains: Mapping[str, Chain]) -> Verdict | None:
    """Why the author's chain does not let an event stand; None when it does."""
    if event.author_seq is None:
        return None
    chain = chains.get(event.author)
    return None if chain is None else chain.verdict(event.author_seq, event.digest)


def all_chains(links: Iterable[Link], upto: int = MAX_LAMPORT) -> dict[str, Chain]:
    """Sum up the chains of all authors, as far as a lamport: what is quarantined is in none."""
    chains = {
        author: chain_of(of_author, upto)
        for author, of_author in groupby(links, key=attrgetter("author"))
    }
    return {author: chain for author, chain in chains.items() if chain.seen_seq}


def chain_of(links: Iterable[Link], upto: int = MAX_LAMPORT, behind: Chain = _EMPTY) -> Chain:
    """Sum up the chain of one author as far as a lamport.

    Args:
        links: Its links, by number and digest.
        upto: The lamport.
        behind: The chain as it was; then only the links above its head are needed, if all that
            are new are among them.
    """
    head: Link | None = None
    head_seq = seen_seq = behind.head_seq
    head_hash, head_lamport = behind.head_hash, behind.head_lamport
    fork = behind.fork if behind.fork is not None and behind.fork[0] <= head_seq else None
    cut: tuple[int, Verdict] | None = None
    last: Link | None = None
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
        # A stub has lost its prev; a retention floor vouches for it.
        if link.prev != head_hash and (link.prev is not None or seq == 1):
            cut = seq, _BROKEN
        elif link.lamport <= head_lamport:
            cut = seq, _LAMPORT
        else:
            head, head_seq, head_lamport = link, seq, link.lamport
    if head is not None:
        head_hash = _hash(head)
    return Chain(head_seq, head_hash, head_lamport, seen_seq, fork, cut)


def reach(lamports: Iterable[int], start: int = 0) -> int:
    """The greatest lamport below the first gap above `start` that quarantines what follows."""
    reached = start
    for lamport in lamports:
        if lamport > reached:
            if lamport - reached > MAX_GAP:
                break
            reached = lamport
    return reached


def _hash(link: Link) -> str:
    return "blake3:" + link.digest.hex()
