"""By whose word content is judged: below each retention floor by what that floor covers.

A floor settles what lies between it and the floor before: membership events that it does not
cover, later ones and those that came late, say nothing there. So what was pruned below a floor
need never be judged again.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from accord.community.envelope import Event, Position
from accord.community.fold.chains import Chain
from accord.community.fold.roster import REVOKED, Roster
from accord.community.fold.settling import settle
from accord.community.fold.standing import Cutoff, Floor, Outcome, cutoff_of
from accord.community.fold.verdicts import VERDICTS, Verdict

_CUTOFF: Final = VERDICTS["revoked.cutoff"]
_FLOOR: Final = VERDICTS["floor"]

Turns = Sequence[tuple[Position, Outcome]]


@dataclass(frozen=True, slots=True)
class Regime:
    """What content between two floors is judged by, or behind the last one.

    Attributes:
        floor: The floor above; None behind the last one.
        outcomes: What the membership events come to that count here.
        cutoffs: Of everybody who is revoked by them.
        turns: Where a level or the policy changes, and how, in total order.
        end: How many of the turns count.
    """

    floor: Floor | None
    outcomes: Mapping[bytes, Outcome]
    cutoffs: Mapping[str, Cutoff]
    turns: Turns
    end: int

    def void(self, event: Event) -> Verdict | None:
        """Why a revocation or the floor takes an event away; None when neither does."""
        cutoff = self.cutoffs.get(event.author)
        if cutoff is not None and cutoff.voids(event):
            return _CUTOFF
        return _FLOOR if self.floor is not None and self.floor.voids(event) else None


def regimes_of(
    events: Sequence[Event], chains: Mapping[str, Chain], roster: Roster
) -> tuple[Regime, ...]:
    """From the lowest floor up; the last one is the roster's own.

    Args:
        events: The membership events, in total order.
        chains: The authors' chains.
        roster: What they come to.
    """
    turns = _turns(events, roster)
    last = Regime(None, roster.outcomes, roster.cutoffs, turns, len(turns))
    return (*_below(events, chains, roster, turns), last)


def _below(
    events: Sequence[Event], chains: Mapping[str, Chain], roster: Roster, turns: Turns
) -> Iterator[Regime]:
    progress = _Progress(events, roster)
    for floor in roster.floors:
        progress.advance(floor.lamport)
        if progress.is_covered_by(floor):
            end = bisect_right(turns, floor.lamport, key=lambda turn: turn[0].lamport)
            yield Regime(floor, roster.outcomes, dict(progress.cutoffs), turns, end)
        else:
            covered = [
                event
                for event in events
                if event.lamport <= floor.lamport and not floor.voids(event)
            ]
            settled = settle(covered, chains, roster.community_id)
            own = _turns(covered, settled)
            yield Regime(floor, settled.outcomes, settled.cutoffs, own, len(own))


class _Progress:
    """Follows the roster's own pass, of which what a floor covers is mostly the beginning."""

    def __init__(self, events: Sequence[Event], roster: Roster) -> None:
        self.cutoffs: dict[str, Cutoff] = {}
        self._events = events
        self._roster = roster
        self._at = 0
        self._heads: dict[str, tuple[int, bytes]] = {}
        self._is_plain = not roster.reaching

    def advance(self, lamport: int) -> None:
        while self._at < len(self._events) and self._events[self._at].lamport <= lamport:
            self._take(self._events[self._at])
            self._at += 1

    def is_covered_by(self, floor: Floor) -> bool:
        return self._is_plain and all(
            floor.covers(author, seq, digest) for author, (seq, digest) in self._heads.items()
        )

    def _take(self, event: Event) -> None:
        seq, _ = self._heads.get(event.author, (0, b""))
        # Forks and unchained events are rare enough to be looked at one by one.
        self._is_plain &= event.author_seq is not None and event.author_seq != seq
        if event.author_seq is not None and event.author_seq > seq:
            self._heads[event.author] = event.author_seq, event.digest
        if event.event_type == REVOKED and self._roster.outcomes[event.digest].node is not None:
            target, cutoff = event.data["target_node_id"], cutoff_of(event)
            known = self.cutoffs.get(target)
            self.cutoffs[target] = cutoff if known is None else known.also(cutoff)


def _turns(events: Sequence[Event], roster: Roster) -> Turns:
    outcomes = ((event, roster.outcomes[event.digest]) for event in events)
    return [
        (event.position, outcome)
        for event, outcome in outcomes
        if outcome.node is not None or outcome.policy is not None
    ]
