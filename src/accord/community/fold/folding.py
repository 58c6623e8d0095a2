"""The fold: every event of a log, judged in order.

Chains first, then membership, then everything in total order against both. What lies at or below
a retention floor is settled: content there is judged by the membership events that the floor
covers and by no others, so that content which was pruned never needs to be read again.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from accord.community.envelope import Event, Position
from accord.community.envelope.names import Level
from accord.community.fold.chains import Chain, all_chains, reach
from accord.community.fold.content import Content, Levels, judge, learn_manifest
from accord.community.fold.history import History, Memory
from accord.community.fold.regimes import Regime, regimes_of
from accord.community.fold.roster import JOINED, Roster
from accord.community.fold.settling import settle
from accord.community.fold.state import State
from accord.community.fold.verdicts import ACCEPTED, VERDICTS, Status, Verdict

Sink = Callable[[Event, Verdict], None]
"""Told of every event and its verdict, in total order."""

_NEVER: Final = 2**63
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
        regimes: From the lowest floor up; the last one is the roster's.
        counts: The membership events by status.
    """

    community_id: str
    chains: Mapping[str, Chain]
    reach: int
    membership: Sequence[Event]
    roster: Roster
    regimes: tuple[Regime, ...]
    counts: Mapping[Status, int]

    def state(self, content: Content) -> State:
        """The state, with what content has come to."""
        return State(self.community_id, self.roster, self.chains, content, self.counts)


def ground(
    community_id: str, chains: Mapping[str, Chain], reached: int, membership: Sequence[Event]
) -> Ground:
    """Fold the membership events, which come in total order."""
    ours = [
        event
        for event in membership
        if event.lamport <= reached and event.community_id == community_id
    ]
    roster = settle(ours, chains, community_id)
    regimes = regimes_of(ours, chains, roster)
    found = Counter(outcome.verdict.status for outcome in roster.outcomes.values())
    counts = {status: found[status] for status in Status}
    return Ground(community_id, chains, reached, membership, roster, regimes, counts)


def fold(history: History, community_id: str, *, sink: Sink | None = None) -> State:
    """Judge every event of a history and give the state that they come to."""
    on = read_ground(history, community_id)
    content = Content()
    run(on, content, history.in_order(None), sink)
    return on.state(content)


def read_ground(history: History, community_id: str) -> Ground:
    """What the events of a history are judged by."""
    reached = reach(history.lamports())
    chains = all_chains(history.authors(), reached)
    return ground(community_id, chains, reached, list(history.membership()))


@dataclass(frozen=True, slots=True)
class Folded:
    """A state, and the verdict on every event by its digest."""

    state: State
    verdicts: Mapping[bytes, Verdict]


def fold_events(events: Iterable[Event], community_id: str) -> Folded:
    """Fold events in memory; see `fold`. Another community's are refused and leave no trace."""
    verdicts: dict[bytes, Verdict] = {}
    ours = []
    for event in events:
        if event.community_id == community_id:
            ours.append(event)
        else:
            verdicts[event.digest] = _FOREIGN

    def note(event: Event, verdict: Verdict) -> None:
        verdicts[event.digest] = verdict

    return Folded(fold(Memory(ours), community_id, sink=note), verdicts)


def run(
    on: Ground,
    content: Content,
    events: Iterable[Event],
    sink: Sink | None,
    after: Position | None = None,
) -> None:
    """Judge events that come in total order behind a position, and let them take effect."""
    counts, outcomes, reached = content.counts, on.roster.outcomes, on.reach
    last: Event | None = None
    regimes = iter(on.regimes)
    court = _Court(on, next(regimes), after)
    for event in events:
        lamport = event.lamport
        while lamport > court.upto:
            court = _Court(on, next(regimes), None)
        if lamport > reached:
            verdict = _QUARANTINED
            counts[Status.QUARANTINED] += 1
        else:
            last = event
            outcome = outcomes.get(event.digest)
            if outcome is None:
                verdict = court.judge(event, content)
                counts[verdict.status] += 1
            else:
                verdict = outcome.verdict
                if event.event_type == JOINED:
                    court.meet(event, content)
        if sink is not None:
            sink(event, verdict)
    if last is not None:
        content.head = last.position


def late(on: Ground, event: Event) -> Verdict | None:
    """Why an event may come late without changing what was judged before; None when it does.

    Only what a revocation or a floor takes away can.
    """
    return regime_at(on, event.lamport).void(event)


def regime_at(on: Ground, lamport: int) -> Regime:
    """The regime by which content at a lamport is judged."""
    return next(each for each in on.regimes if each.floor is None or lamport <= each.floor.lamport)


class _Court:
    """Judges the events of one regime in order.

    Args:
        on: What is common to all events.
        regime: By whose word.
        after: Where judging begins.
    """

    __slots__ = (
        "_chains",
        "_community_id",
        "_cutoffs",
        "_has_floor",
        "_levels",
        "_next",
        "_next_lamport",
        "_regime",
        "_unchained",
        "upto",
    )

    def __init__(self, on: Ground, regime: Regime, after: Position | None) -> None:
        self.upto = _NEVER if regime.floor is None else regime.floor.lamport
        self._regime = regime
        self._community_id = on.community_id
        self._chains = on.chains
        self._cutoffs = regime.cutoffs
        self._has_floor = regime.floor is not None
        self._levels: Levels = {}
        self._unchained = False
        self._next = 0
        self._next_lamport = -1
        if after is not None:
            self._advance(after)

    def judge(self, event: Event, content: Content) -> Verdict:
        """Judge one content event and let it take effect."""
        author, seq = event.author, event.author_seq
        if event.community_id != self._community_id:
            return _FOREIGN
        if event.lamport >= self._next_lamport:
            self._advance(event.position)
        if self._has_floor or author in self._cutoffs:
            void = self._regime.void(event)
            if void is not None:
                return void
        if seq is not None:
            chain = self._chains[author]
            if seq > chain.head_seq or chain.fork is not None:
                standing = chain.verdict(seq, event.digest)
                if standing is not None:
                    return standing
        elif not self._unchained:
            return _REQUIRED
        if author not in self._levels:
            return _LEVEL
        return judge(content, event, self._levels)

    def meet(self, joined: Event, content: Content) -> None:
        """Learn who has joined, as far as this regime knows of it."""
        outcome = self._regime.outcomes.get(joined.digest)
        if outcome is not None and outcome.verdict is ACCEPTED:
            learn_manifest(content, joined, joined.data["node_manifest"])

    def _advance(self, before: Position) -> None:
        """Take up what the membership events before a position came to."""
        turns, last = self._regime.turns, self._regime.end
        end = bisect_left(turns, before, self._next, last, key=lambda turn: turn[0])
        for _, outcome in turns[self._next : end]:
            if outcome.policy is not None:
                self._unchained = bool(outcome.policy.get("unchained_events", False))
            if outcome.node is not None:
                if outcome.level is Level.UNKNOWN:
                    self._levels.pop(outcome.node, None)
                else:
                    self._levels[outcome.node] = outcome.level
        self._next = end
        self._next_lamport = turns[end][0].lamport if end < last else _NEVER
