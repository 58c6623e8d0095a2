"""The fold: every event of a log, judged in order.

Chains first, then membership, then everything in total order against both. What lies at or below
a retention floor is settled: content there is judged by the membership events at or below that
floor alone, so that content which was pruned never needs to be read again.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from accord.community.envelope import Event, Position
from accord.community.envelope.names import Level
from accord.community.fold.chains import Chain, all_chains, reach
from accord.community.fold.content import Content, Levels, judge, learn_manifest
from accord.community.fold.history import MEMBERSHIP, History, Memory
from accord.community.fold.roster import Roster
from accord.community.fold.settling import settle
from accord.community.fold.state import State
from accord.community.fold.verdicts import ACCEPTED, VERDICTS, Verdict

Sink = Callable[[Event, Verdict], None]
"""Told of every event and its verdict, in total order."""

_JOINED: Final = "community.member.joined"
_QUARANTINED: Final = VERDICTS["lamport.gap"]
_FOREIGN: Final = VERDICTS["community.foreign"]
_LEVEL: Final = VERDICTS["membership.level"]
_REQUIRED: Final = VERDICTS["chain.required"]


@dataclass(frozen=True, slots=True)
class Ground:
    """What content is judged by.

    Attributes:
        community_id: Whose log it is.
        chains: The authors' chains.
        reach: The greatest lamport that is not quarantined.
        membership: Its events, in order.
        roster: What they come to, all of them.
        settled: By the lamport of each floor, ascending, what they come to up to there.
    """

    community_id: str
    chains: dict[str, Chain]
    reach: int
    membership: Sequence[Event]
    roster: Roster
    settled: tuple[tuple[int, Roster], ...]


def ground(
    community_id: str, chains: dict[str, Chain], reached: int, membership: Sequence[Event]
) -> Ground:
    """Fold the membership events, which come in total order."""
    within = [event for event in membership if event.lamport <= reached]
    roster = settle(within, chains, community_id)
    settled = []
    for lamport in sorted(floor.lamport for floor in roster.floors):
        below = [event for event in within if event.lamport <= lamport]
        settled.append((lamport, settle(below, chains, community_id)))
    return Ground(community_id, chains, reached, membership, roster, tuple(settled))


def fold(history: History, community_id: str, *, sink: Sink | None = None) -> State:
    """Judge every event of a history and give the state that they come to."""
    on = ground(
        community_id,
        all_chains(history.authors()),
        reach(history.lamports()),
        list(history.membership()),
    )
    content = Content()
    run(on, content, history.in_order(None), sink)
    return State(on.community_id, on.roster, on.chains, content)


@dataclass(frozen=True, slots=True)
class Folded:
    """A state, and the verdict on every event by its digest."""

    state: State
    verdicts: Mapping[bytes, Verdict]


def fold_events(events: Iterable[Event], community_id: str) -> Folded:
    """Fold events in memory; see `fold`."""
    verdicts: dict[bytes, Verdict] = {}

    def note(event: Event, verdict: Verdict) -> None:
        verdicts[event.digest] = verdict

    return Folded(fold(Memory(events), community_id, sink=note), verdicts)


def run(
    on: Ground,
    content: Content,
    events: Iterable[Event],
    sink: Sink | None,
    after: Position | None = None,
) -> None:
    """Judge events that come in total order behind a position, and let them take effect."""
    counts = content.counts
    reached = on.reach
    last: Event | None = None
    regime = iter(_regimes(on, after))
    court = next(regime)
    for event in events:
        while event.lamport > court.upto:
            court = next(regime)
        if event.lamport > reached:
            verdict = _QUARANTINED
        else:
            verdict = court.judge(event, content)
            last = event
        counts[verdict.status] += 1
        if sink is not None:
            sink(event, verdict)
    if last is not None:
        content.head = last.position


def _regimes(on: Ground, after: Position | None) -> Iterator["_Court"]:
    for lamport, roster in on.settled:
        if after is None or after.lamport <= lamport:
            yield _Court(on, roster, lamport, after)
    yield _Court(on, on.roster, None, after)


class _Court:
    """Judges the events between two floors, or behind the last one, by one roster.

    Args:
        on: What is common to all events.
        roster: Whose word counts for content here.
        upto: The floor above; None behind the last.
        after: Where judging begins; only the first court is asked from there.
    """

    def __init__(
        self, on: Ground, roster: Roster, upto: int | None, after: Position | None
    ) -> None:
        self.upto: float = float("inf") if upto is None else upto
        self._on = on
        self._chains = on.chains
        self._roster = roster
        self._levels: Levels = {}
        self._unchained = False
        self._cutoffs = roster.cutoffs
        self._top_floor = max((floor.lamport for floor in on.roster.floors), default=-1)
        self._membership = [event for event in on.membership if event.digest in roster.outcomes]
        self._next = 0
        self._positions = [event.position for event in self._membership]
        if after is not None:
            self._advance(after)

    def judge(self, event: Event, content: Content) -> Verdict:
        """Judge one event and let it take effect."""
        if event.community_id != self._on.community_id:
            return _FOREIGN
        if self._next < len(self._positions) and self._positions[self._next] < event.position:
            self._advance(event.position)
        if event.event_type in MEMBERSHIP:
            outcome = self._on.roster.outcomes[event.digest]
            if event.event_type == _JOINED and outcome.verdict is ACCEPTED:
                learn_manifest(content, event, event.data["node_manifest"])
            return outcome.verdict
        author, seq = event.author, event.author_seq
        if (author in self._cutoffs or event.lamport <= self._top_floor) and (
            void := self._void(event)
        ) is not None:
            return void
        if seq is not None:
            chain = self._chains[author]
            if seq > chain.head_seq or not chain.is_whole:
                standing = chain.verdict(seq, event.digest)
                if standing is not None:
                    return standing
        elif not self._unchained:
            return _REQUIRED
        if author not in self._levels:
            return _LEVEL
        return judge(content, event, self._levels)

    def _void(self, event: Event) -> Verdict | None:
        cutoff = self._cutoffs.get(event.author)
        if cutoff is not None and cutoff.voids(event):
            return VERDICTS["revoked.cutoff"]
        if any(floor.voids(event) for floor in self._on.roster.floors):
            return VERDICTS["floor"]
        return None

    def _advance(self, before: Position) -> None:
        """Take up what the membership events before a position came to."""
        end = bisect_left(self._positions, before, self._next)
        for event in self._membership[self._next : end]:
            outcome = self._roster.outcomes[event.digest]
            if outcome.policy is not None:
                self._unchained = bool(outcome.policy.get("unchained_events", False))
            if outcome.node is not None:
                if outcome.level is Level.UNKNOWN:
                    self._levels.pop(outcome.node, None)
                else:
                    self._levels[outcome.node] = outcome.level
        self._next = end
