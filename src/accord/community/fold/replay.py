"""A state that is kept up with its log, batch by batch; incremental equals full.

New events at the end are simply judged. Anything that changes how content was judged before (an
event that comes late, a gap that closes, an equivocation, a revocation that reaches back, a
quarantine that ends) rewinds to the first place concerned, and judging goes on from there: near
the end by undoing, further back from a copy. Membership is small, and folded anew whenever one of
its events comes.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from accord.community.envelope import Event, Position
from accord.community.fold.chains import Chain, all_chains, chain_of, reach
from accord.community.fold.content import Content
from accord.community.fold.folding import Ground, ground, late, read_ground, run
from accord.community.fold.grounds import END, first_difference
from accord.community.fold.history import MEMBERSHIP, History, Link
from accord.community.fold.past import START, Past
from accord.community.fold.snapshots import NeedsHistoryError, check_unchanged
from accord.community.fold.state import State
from accord.community.fold.verdicts import ACCEPTED, VERDICTS, Status, Verdict

_FOREIGN: Final = VERDICTS["community.foreign"]


@dataclass(frozen=True, slots=True)
class Advance:
    """What a batch changed.

    Attributes:
        state: The state after it.
        changed: Every new event, and every older one whose verdict is another now, in total order.
    """

    state: State
    changed: list[tuple[Event, Verdict]]


class Replay:
    """The state of one log.

    Args:
        community_id: Whose log it is.
    """

    def __init__(self, community_id: str) -> None:
        self._community_id = community_id
        self._ground = ground(community_id, {}, 0, [])
        self._past = Past(START, Content())
        self._highest = 0
        self._not_standing: dict[bytes, Verdict] = {}

    @property
    def state(self) -> State:
        """What the events come to, as far as they were given."""
        return self._ground.state(self._past.content)

    @property
    def membership(self) -> Sequence[Event]:
        """Every membership event that was given, in total order."""
        return self._ground.membership

    @classmethod
    def resume(cls, state: State, history: History) -> "tuple[Self, Advance]":
        """Begin with the state of a snapshot, and judge what the history has behind it.

        Chains and membership are folded from the history, which always has them whole.

        Raises:
            NeedsHistoryError: What came before the snapshot would be judged otherwise now.
        """
        replay = cls(state.community_id)
        on = replay._ground = read_ground(history, state.community_id)
        replay._highest = max(history.lamports(), default=0)
        came_late = check_unchanged(state, on, history)
        head = state.content.head or START
        replay._past = Past(head, state.content.copy())
        replay._past.content.counts[Status.VOID] += came_late
        replay._past.content.counts[Status.QUARANTINED] = 0
        changed = replay._judge(history.in_order(_or_none(head)), frozenset(), is_rewound=False)
        return replay, Advance(replay.state, changed)

    def advance(self, history: History, new: Iterable[Event]) -> Advance:
        """Take up new events; with those taken before they are all that the history has.

        Raises:
            NeedsHistoryError: They change what came before the snapshot that this began with;
                nothing was taken up.
        """
        unique = {event.digest: event for event in new}
        ours = [event for event in unique.values() if event.community_id == self._community_id]
        fresh = sorted(ours, key=lambda event: event.position)
        foreign = [(e, _FOREIGN) for e in unique.values() if e.community_id != self._community_id]
        if not fresh:
            return Advance(self.state, foreign)
        old = self._ground
        on = self._renewed(history, fresh)
        changed_from = (
            END if on.regimes is old.regimes else first_difference(old, on, history.author)
        )
        if on.reach > old.reach and self._highest > old.reach:
            changed_from = min(changed_from, Position(old.reach + 1, "", b""))
        behind = [event for event in fresh if event.position <= self._past.base]
        told = [(event, late(on, event)) for event in behind if event.event_type not in MEMBERSHIP]
        touched = min([changed_from, *(e.position for e in fresh if e.position > self._past.base)])
        if changed_from <= self._past.base or any(verdict is None for _, verdict in told):
            raise NeedsHistoryError("an event reaches back behind the snapshot")
        self._ground = on
        self._highest = max(self._highest, fresh[-1].lamport)
        changed = foreign + self._membership_changes(old, unique.keys())
        changed += [(event, verdict) for event, verdict in told if verdict is not None]
        for event, verdict in told:
            assert verdict is not None
            self._not_standing[event.digest] = verdict
        if told:
            self._past.add(verdict.status for _, verdict in told if verdict is not None)
        if changed_from == END and touched > (self._past.content.head or START):
            ahead = fresh[len(behind) :]
            changed += self._judge(ahead, unique.keys(), is_rewound=False)
        elif touched != END:
            after = self._past.rewind(touched)
            changed += self._judge(history.in_order(after), unique.keys(), is_rewound=True)
        changed.sort(key=lambda each: each[0].position)
        return Advance(self.state, changed)

    def _renewed(self, history: History, fresh: Sequence[Event]) -> Ground:
        """The ground with new events."""
        old = self._ground
        reached = self._reach(history, fresh)
        chains, is_simple = self._chains(history, fresh, reached)
        added = [event for event in fresh if event.event_type in MEMBERSHIP]
        if is_simple and not added:
            return replace(old, chains=chains, reach=reached)
        membership = list(old.membership)
        for event in added:
            insort(membership, event, key=lambda each: each.position)
        return ground(self._community_id, chains, reached, membership)

    def _chains(
        self, history: History, fresh: Sequence[Event], reached: int
    ) -> tuple[dict[str, Chain], bool]:
        """The chains, and whether all that is new merely follows what was there."""
        old = self._ground
        if reached > old.reach and self._highest > old.reach:
            return all_chains(history.authors(), reached), False
        chains = dict(old.chains)
        lowest: dict[str, int] = {}
        tangled = set()
        for event in fresh:
            author, seq = event.author, event.author_seq
            if seq is None or event.lamport > reached:
                continue
            lowest[author] = min(seq, lowest.get(author, seq))
            if author in tangled:
                continue
            link = Link(author, seq, event.digest, event.prev, event.lamport)
            longer = chains.get(author, Chain()).followed_by(link)
            if longer is None:
                tangled.add(author)
            else:
                chains[author] = longer
        for author in sorted(tangled):
            was = old.chains.get(author, Chain())
            behind = was if lowest[author] > was.head_seq else Chain()
            chains[author] = chain_of(history.author(author, behind.head_seq), reached, behind)
        return chains, not tangled

    def _reach(self, history: History, fresh: Sequence[Event]) -> int:
        reached = reach((event.lamport for event in fresh), self._ground.reach)
        if max(self._highest, fresh[-1].lamport) > reached:
            # Something is quarantined, and may be within reach now.
            reached = reach(history.lamports())
        return reached

    def _membership_changes(
        self, old: Ground, fresh: Iterable[bytes]
    ) -> list[tuple[Event, Verdict]]:
        new, was, now = frozenset(fresh), old.roster.outcomes, self._ground.roster.outcomes
        if was is now:
            return []
        return [
            (event, now[event.digest].verdict)
            for event in self._ground.membership
            if event.digest in now
            and (
                event.digest in new
                or event.digest not in was
                or was[event.digest].verdict is not now[event.digest].verdict
            )
        ]

    def _judge(
        self, events: Iterable[Event], fresh: Iterable[bytes], *, is_rewound: bool
    ) -> list[tuple[Event, Verdict]]:
        changed: list[tuple[Event, Verdict]] = []
        others, outcomes = self._not_standing, self._ground.roster.outcomes
        new = frozenset(fresh)
        past = self._past

        def note(event: Event, verdict: Verdict) -> None:
            if event.digest in outcomes:
                past.note(event, None)
                return
            past.note(event, verdict.status)
            before = others.get(event.digest, ACCEPTED)
            if not is_rewound or before is not verdict or event.digest in new:
                changed.append((event, verdict))
            if verdict is not ACCEPTED:
                others[event.digest] = verdict
            elif before is not ACCEPTED:
                del others[event.digest]

        run(self._ground, past.content, events, note, past.content.head)
        return changed


def _or_none(position: Position) -> Position | None:
    return None if position == START else position
