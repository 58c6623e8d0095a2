"""A state that is kept up with its log, batch by batch; incremental equals full.

New events at the end are simply judged. Anything that changes what was judged before (an event
that comes late, a gap that closes, an equivocation, a revocation that reaches back, a quarantine
that ends) rewinds to the last checkpoint before the first place concerned, and judging goes on
from there.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from accord.community.envelope import Event, Position
from accord.community.errors import Code, CommunityError
from accord.community.fold.chains import Chain, all_chains, chain_of, reach
from accord.community.fold.content import Content
from accord.community.fold.folding import Ground, ground, run
from accord.community.fold.grounds import END, first_difference
from accord.community.fold.history import MEMBERSHIP, History, Link
from accord.community.fold.state import State
from accord.community.fold.verdicts import ACCEPTED, Status, Verdict

_START: Final = Position(-1, "", b"")
_CHECKPOINTS: Final = 16
_BETWEEN: Final = 1000


class NeedsHistoryError(CommunityError):
    """A snapshot is not enough: something behind it changes what came before it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Code.PARTITION, what, mend="fold the log from its beginning, or from a newer snapshot"
        )


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
        self._content = Content()
        self._checkpoints: list[tuple[Position, Content]] = [(_START, Content())]
        self._since_checkpoint = 0
        self._highest = 0
        self._not_standing: dict[bytes, Verdict] = {}

    @property
    def state(self) -> State:
        """What the events come to, as far as they were given."""
        on = self._ground
        return State(self._community_id, on.roster, on.chains, self._content)

    @classmethod
    def resume(cls, state: State, history: History) -> "tuple[Self, Advance]":
        """Begin with the state of a snapshot, and judge what the history has behind it.

        Chains and membership are folded from the history, which always has them whole.

        Raises:
            NeedsHistoryError: What came before the snapshot would be judged otherwise now.
        """
        replay = cls(state.community_id)
        head = state.content.head or _START
        replay._ground = ground(
            state.community_id,
            all_chains(history.authors()),
            reach(history.lamports()),
            list(history.membership()),
        )
        replay._highest = max(history.lamports(), default=0)
        _check_unchanged(state, replay._ground, history)
        replay._content = _kept(state.content)
        replay._checkpoints = [(head, _kept(state.content))]
        changed = replay._judge(history.in_order(_or_none(head)), frozenset(), is_rewound=False)
        return replay, Advance(replay.state, changed)

    def advance(self, history: History, new: Sequence[Event]) -> Advance:
        """Take up new events, which the history already has.

        Raises:
            NeedsHistoryError: They change what came before the snapshot that this began with;
                nothing was taken up.
        """
        unique = {event.digest: event for event in new}
        fresh = sorted(unique.values(), key=lambda event: event.position)
        if not fresh:
            return Advance(self.state, [])
        on, changed_from = self._renewed(history, fresh)
        touched = min(fresh[0].position, changed_from)
        if touched <= self._checkpoints[0][0]:
            raise NeedsHistoryError("an event reaches back behind the snapshot")
        self._ground = on
        self._highest = max(self._highest, fresh[-1].lamport)
        if changed_from == END and touched > (self._content.head or _START):
            changed = self._judge(fresh, unique.keys(), is_rewound=False)
        else:
            after = self._rewind(touched)
            changed = self._judge(history.in_order(after), unique.keys(), is_rewound=True)
        return Advance(self.state, changed)

    def _renewed(self, history: History, fresh: Sequence[Event]) -> tuple[Ground, Position]:
        """The ground with new events, and the first position at which it changes the past."""
        old = self._ground
        chains, changed_from = self._chains(history, fresh)
        reached = self._reach(history, fresh)
        if reached > old.reach and self._highest > old.reach:
            changed_from = min(changed_from, Position(old.reach + 1, "", b""))
        membership = list(old.membership)
        for event in fresh:
            if event.event_type in MEMBERSHIP:
                insort(membership, event, key=lambda each: each.position)
        if len(membership) == len(old.membership) and changed_from == END:
            same = old.community_id, chains, reached, old.membership, old.roster, old.settled
            return Ground(*same), END
        on = ground(self._community_id, chains, reached, membership)
        return on, min(changed_from, first_difference(old, on, history))

    def _chains(
        self, history: History, fresh: Sequence[Event]
    ) -> tuple[dict[str, Chain], Position]:
        chains = dict(self._ground.chains)
        tangled = set()
        for event in fresh:
            if event.author_seq is None or event.author in tangled:
                continue
            link = Link(event.author, event.author_seq, event.digest, event.prev, event.lamport)
            longer = chains.get(event.author, Chain()).followed_by(link)
            if longer is None:
                tangled.add(event.author)
            else:
                chains[event.author] = longer
        changed_from = END
        for author in sorted(tangled):
            links = list(history.author(author))
            was = self._ground.chains.get(author, Chain())
            now = chains[author] = chain_of(links)
            for link in links:
                seq = link.author_seq
                if seq is not None and was.verdict(seq, link.digest) is not now.verdict(
                    seq, link.digest
                ):
                    changed_from = min(changed_from, Position(link.lamport, "", b""))
        return chains, changed_from

    def _reach(self, history: History, fresh: Sequence[Event]) -> int:
        reached = reach((event.lamport for event in fresh), self._ground.reach)
        if max(self._highest, fresh[-1].lamport) > reached:
            # Something is quarantined, and may be within reach now.
            reached = reach(history.lamports())
        return reached

    def _rewind(self, touched: Position) -> Position | None:
        while self._checkpoints[-1][0] >= touched:
            self._checkpoints.pop()
        position, content = self._checkpoints[-1]
        self._content = content.copy()
        self._since_checkpoint = 0
        return _or_none(position)

    def _judge(
        self, events: Iterable[Event], fresh: Iterable[bytes], *, is_rewound: bool
    ) -> list[tuple[Event, Verdict]]:
        changed: list[tuple[Event, Verdict]] = []
        others = self._not_standing
        new = frozenset(fresh)

        def note(event: Event, verdict: Verdict) -> None:
            before = others.get(event.digest, ACCEPTED)
            if not is_rewound or before is not verdict or event.digest in new:
                changed.append((event, verdict))
            if verdict is not ACCEPTED:
                others[event.digest] = verdict
            elif before is not ACCEPTED:
                del others[event.digest]
            self._since_checkpoint += 1

        run(self._ground, self._content, events, note, self._content.head)
        self._remember()
        return changed

    def _remember(self) -> None:
        """Keep a copy now and then: often near the end, seldom far behind it."""
        total = sum(self._content.counts.values())
        if self._since_checkpoint < _BETWEEN + total // 50 or self._content.head is None:
            return
        self._since_checkpoint = 0
        self._checkpoints.append((self._content.head, _kept(self._content)))
        if len(self._checkpoints) > _CHECKPOINTS:
            # Every second one of the older half goes; the first, where all begins, stays.
            half = _CHECKPOINTS // 2
            self._checkpoints = self._checkpoints[:half:2] + self._checkpoints[half:]


def _check_unchanged(state: State, on: Ground, history: History) -> None:
    """Make sure that a snapshot's content would be judged now as it was."""
    head = state.content.head or _START
    counts = state.content.counts
    covered = sum(lamport <= head.lamport for lamport in history.lamports())
    if covered != sum(counts.values()) - counts[Status.QUARANTINED]:
        raise NeedsHistoryError("the log has other events than the snapshot up to its head")
    for author, chain in state.chains.items():
        now = on.chains.get(author, Chain())
        if (now.fork, now.cut) != (chain.fork, chain.cut) or now.head_seq < chain.head_seq:
            raise NeedsHistoryError(f"the chain of {author} is another than in the snapshot")
    below = [event for event in on.membership if event.position <= head]
    then = ground(on.community_id, on.chains, on.reach, below)
    if first_difference(then, on, history) <= head:
        raise NeedsHistoryError("what came behind the snapshot changes what came before it")


def _kept(content: Content) -> Content:
    """A copy to begin from again; what is quarantined lies behind it and is counted anew."""
    copy = content.copy()
    copy.counts[Status.QUARANTINED] = 0
    return copy


def _or_none(position: Position) -> Position | None:
    return None if position == _START else position
