"""Where two grounds judge content otherwise: how far a rewind must go.

New events change the ground on which old ones were judged: whose chain forks, who belonged, what a
revocation or a floor takes away. Finds the first place at which that makes a difference to
content, exactly where the history can tell, and too early rather than too late.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from accord.community.envelope import Position
from accord.community.fold.chains import Chain
from accord.community.fold.folding import Ground, regime_at
from accord.community.fold.history import Link
from accord.community.fold.regimes import Regime
from accord.community.fold.standing import Cutoff, Floor

END: Final = Position(2**63, "", b"")
"""Behind every event."""

_FAR: Final = 2**62


class LinksOf(Protocol):
    """Gives the links of an author, or only those above a number."""

    def __call__(self, author: str, after: int = 0, /) -> Iterable[Link]: ...  # noqa: D102


def first_difference(old: Ground, new: Ground, links_of: LinksOf) -> Position:
    """The first position at which content that both know may be judged otherwise.

    Args:
        old: What it was judged by.
        new: What it is judged by now.
        links_of: Gives the links of an author.
    """
    return min(
        [END, *_of_chains(old, new, links_of), *_of_regimes(old, new, links_of)],
    )


def _at(lamport: int) -> Position:
    return Position(lamport, "", b"")


def _of_chains(old: Ground, new: Ground, links_of: LinksOf) -> Iterator[Position]:
    for author, chain in new.chains.items():
        was = old.chains.get(author, Chain())
        if was is chain or (was.is_whole and chain.is_whole):
            continue
        for link in links_of(author, min(was.settled, chain.settled)):
            seq = link.author_seq
            if seq is not None and link.lamport <= old.reach:
                before, now = was.verdict(seq, link.digest), chain.verdict(seq, link.digest)
                if before is not now:
                    yield _at(link.lamport)


def _of_regimes(old: Ground, new: Ground, links_of: LinksOf) -> Iterator[Position]:
    """Content is judged by another regime below each floor."""
    floors = [each.floor for each in (*old.regimes, *new.regimes) if each.floor is not None]
    above = -1
    for upto in (*sorted({floor.lamport for floor in floors}), _FAR):
        before, after = regime_at(old, upto), regime_at(new, upto)
        turned = _of_turns(before, after)
        if turned.lamport <= upto:
            yield max(turned, _at(above + 1))
        yield from _of_cutoffs(before, after, links_of, above, upto)
        yield from _of_floors(before.floor, after.floor, new, links_of, above, upto)
        above = upto


def _of_turns(before: Regime, after: Regime) -> Position:
    """The first turn that only one of two regimes takes."""
    if before.turns is after.turns and before.end == after.end:
        return END
    pairs = zip(before.turns[: before.end], after.turns[: after.end], strict=False)
    for was, now in pairs:
        if was[0] != now[0] or was[1][1:] != now[1][1:]:
            return min(was[0], now[0])
    shorter = min(before.end, after.end)
    longer = before if before.end > after.end else after
    return longer.turns[shorter][0] if longer.end > shorter else END


def _of_cutoffs(
    before: Regime, after: Regime, links_of: LinksOf, above: int, upto: int
) -> Iterator[Position]:
    for author in sorted(before.cutoffs.keys() | after.cutoffs.keys()):
        was, now = before.cutoffs.get(author), after.cutoffs.get(author)
        if was != now:
            for link in links_of(author):
                if above < link.lamport <= upto and _may_differ(was, now, link):
                    yield _at(link.lamport)


def _may_differ(was: Cutoff | None, now: Cutoff | None, link: Link) -> bool:
    cutoffs = [cutoff for cutoff in (was, now) if cutoff is not None]
    if link.author_seq is None:
        # A link has no event id, so within one lamport nobody can tell.
        return any(link.lamport >= cutoff.position.lamport for cutoff in cutoffs)
    voids = [cutoff.voids_link(link.author_seq, link.digest) for cutoff in cutoffs]
    return voids[0] if len(voids) == 1 else voids[0] != voids[1]


def _of_floors(
    was: Floor | None, now: Floor | None, new: Ground, links_of: LinksOf, above: int, upto: int
) -> Iterator[Position]:
    if was == now:
        return
    floors = [floor for floor in (was, now) if floor is not None]
    for author, chain in new.chains.items():
        if all(_covers_whole(floor, author, chain) for floor in floors):
            continue
        for link in links_of(author):
            covered = [floor.covers(author, link.author_seq, link.digest) for floor in floors]
            if above < link.lamport <= upto and not all(covered):
                yield _at(link.lamport)


def _covers_whole(floor: Floor, author: str, chain: Chain) -> bool:
    last_seq, last_hash = floor.heads.get(author, (0, ""))
    if chain.seen_seq == last_seq:
        return chain.fork is None and chain.head_hash == last_hash
    return chain.seen_seq < last_seq
