"""Whether a snapshot's state is still what its events come to, now that others are known.

Reads links and membership events, never the content before the snapshot, which may be pruned.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from accord.community.errors import Code, CommunityError
from accord.community.fold.chains import Chain, chain_of
from accord.community.fold.folding import Ground, ground, regime_at
from accord.community.fold.grounds import first_difference
from accord.community.fold.history import History, Link
from accord.community.fold.past import START
from accord.community.fold.state import State
from accord.community.fold.verdicts import Status


class NeedsHistoryError(CommunityError):
    """A snapshot is not enough: something behind it changes what came before it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Code.PARTITION, what, mend="fold the log from its beginning, or from a newer snapshot"
        )


def check_unchanged(state: State, on: Ground, history: History) -> int:
    """Make sure that a snapshot's content would be judged now as it was.

    Returns:
        How many content events came too late for it, below a floor, and are void.

    Raises:
        NeedsHistoryError: It would not.
    """
    head = state.content.head or START
    late: set[bytes] = set()
    membership = {event.digest for event in on.membership}
    total = 0
    for author, links in groupby(history.authors(), key=attrgetter("author")):
        before = _Counted(links, head.lamport, membership)
        was = state.chains.get(author, Chain())
        if chain_of(before) != was:
            late |= _late(history.author(author), was, head.lamport, on)
        total += before.content
        if not (was.is_whole and on.chains.get(author, Chain()).is_whole):
            _check_chain(history.author(author), was, on, head.lamport, late)
    total -= len(late - membership)
    counts = state.content.counts
    if total != sum(counts.values()) - counts[Status.QUARANTINED]:
        raise NeedsHistoryError("the log has other events than the snapshot up to its head")
    below = [e for e in on.membership if e.position <= head and e.digest not in late]
    then = ground(on.community_id, on.chains, on.reach, below)

    def punctual(author: str, after: int = 0) -> Iterator[Link]:
        return (link for link in history.author(author, after) if link.digest not in late)

    if first_difference(then, on, punctual) <= head:
        raise NeedsHistoryError("what came behind the snapshot changes what came before it")
    return len(late - membership)


class _Counted:
    """The links of an author up to a lamport; counts the content among them."""

    def __init__(self, links: Iterable[Link], upto: int, membership: set[bytes]) -> None:
        self._links = links
        self._upto = upto
        self._membership = membership
        self.content = 0

    def __iter__(self) -> Iterator[Link]:
        for link in self._links:
            if link.lamport <= self._upto:
                self.content += link.digest not in self._membership
                yield link


def _late(links: Iterable[Link], was: Chain, upto: int, on: Ground) -> set[bytes]:
    """What a floor does not cover, where the snapshot has everything else."""
    late: set[bytes] = set()
    kept = []
    for link in links:
        if link.lamport <= upto:
            floor = regime_at(on, link.lamport).floor
            if floor is None or floor.covers(link.author, link.author_seq, link.digest):
                kept.append(link)
            else:
                late.add(link.digest)
    if chain_of(kept) != was:
        raise NeedsHistoryError("a chain is another than in the snapshot")
    return late


def _check_chain(
    links: Iterable[Link], was: Chain, on: Ground, upto: int, late: set[bytes]
) -> None:
    for link in links:
        seq = link.author_seq
        if seq is None or link.lamport > upto or link.digest in late:
            continue
        if was.verdict(seq, link.digest) is not on.chains[link.author].verdict(seq, link.digest):
            raise NeedsHistoryError("a chain forks or breaks before the snapshot")
