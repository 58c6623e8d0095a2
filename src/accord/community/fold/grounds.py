"""Where two grounds judge an event otherwise: how far a rewind must go.

New events change the ground on which old ones were judged: who belonged, what a revocation or a
floor takes away. Finds the first place at which that makes a difference, exactly where the history
can tell, and too early rather than too late.
"""

from collections.abc import Iterator

from accord.community.envelope import Position
from accord.community.fold.folding import Ground
from accord.community.fold.history import History, Link
from accord.community.fold.roster import Cutoff, Roster

END = Position(2**63, "", b"")
"""Behind every event."""

_FAR = 2**62


def first_difference(old: Ground, new: Ground, history: History) -> Position:
    """The first position at which an event that both know may be judged otherwise."""
    return min(
        [
            _of_outcomes(old.roster, new.roster, old, verdicts=True),
            *_of_regimes(old, new, history),
            *_of_floors(old, new, history),
        ]
    )


def _of_outcomes(before: Roster, after: Roster, old: Ground, *, verdicts: bool) -> Position:
    for event in old.membership:
        was, now = before.outcomes.get(event.digest), after.outcomes.get(event.digest)
        if was is None or now is None or was == now:
            continue
        if verdicts or was[1:] != now[1:]:
            return event.position
    return END


def _of_regimes(old: Ground, new: Ground, history: History) -> Iterator[Position]:
    """Content is judged by another roster below each floor."""
    bounds = sorted({lamport for lamport, _ in (*old.settled, *new.settled)})
    above = -1
    for upto in (*bounds, _FAR):
        before, after = _roster_at(old, upto), _roster_at(new, upto)
        found = _of_outcomes(before, after, old, verdicts=False)
        if found.lamport <= upto:
            yield max(found, Position(above + 1, "", b""))
        yield from _of_cutoffs(before, after, history, above, upto)
        above = upto


def _roster_at(on: Ground, upto: int) -> Roster:
    return next((roster for lamport, roster in on.settled if upto <= lamport), on.roster)


def _of_cutoffs(
    before: Roster, after: Roster, history: History, above: int, upto: int
) -> Iterator[Position]:
    for author in sorted(before.cutoffs.keys() | after.cutoffs.keys()):
        was, now = before.cutoffs.get(author), after.cutoffs.get(author)
        if was == now:
            continue
        for link in history.author(author):
            if above < link.lamport <= upto and _voids(was, link) != _voids(now, link):
                yield Position(link.lamport, "", b"")


def _voids(cutoff: Cutoff | None, link: Link) -> bool:
    if cutoff is None:
        return False
    if link.author_seq is None:
        return link.lamport >= cutoff.position.lamport
    return cutoff.voids_link(link.author_seq, link.digest)


def _of_floors(old: Ground, new: Ground, history: History) -> Iterator[Position]:
    for floor in new.roster.floors:
        if floor in old.roster.floors:
            continue
        for author, chain in new.chains.items():
            if chain.seen_seq <= floor.heads.get(author, (0, ""))[0]:
                continue
            for link in history.author(author):
                if (
                    link.author_seq is not None
                    and link.lamport <= floor.lamport
                    and floor.voids_link(author, link.author_seq, link.digest)
                ):
                    yield Position(link.lamport, "", b"")
