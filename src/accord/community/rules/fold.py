"""The fold: judge every event of a log in order.

Chains first, then membership, then everything in total order against both. A retention floor
settles what is at or below it: content there is judged only by the membership events that the floor
covers, so pruned events never need to be judged again. `Trial` tells whether an event would be
accepted before it is signed.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from accord.community.errors import Code, CommunityError
from accord.community.rules.chains import (
    MEMBERSHIP_TYPES,
    Chain,
    ChainLink,
    History,
    MemoryHistory,
    all_chains,
    reachable_lamport,
)
from accord.community.rules.content import Content, LevelMap, judge_content, learn_manifest
from accord.community.rules.event import Event, Position
from accord.community.rules.formats import Level
from accord.community.rules.membership import (
    JOINED,
    REVOKED,
    Cutoff,
    Floor,
    MembershipOutcome,
    Roster,
    cutoff_of,
)
from accord.community.rules.revocations import settle_membership
from accord.community.rules.state import CommunityState
from accord.community.rules.verdicts import ACCEPTED, VERDICTS, Status, Verdict

_CUTOFF: Final = VERDICTS["revoked.cutoff"]
_FLOOR: Final = VERDICTS["floor"]

Turns = Sequence[tuple[Position, MembershipOutcome]]


@dataclass(frozen=True, slots=True)
class Regime:
    """The membership by which content between two floors, or after the last one, is judged.

    Attributes:
        floor: The floor above; None after the last one.
        outcomes: The outcomes of the membership events that count here.
        cutoffs: Of everybody revoked by them.
        turns: The changes of levels and policy, in total order.
        end: How many of the turns count.
    """

    floor: Floor | None
    outcomes: Mapping[bytes, MembershipOutcome]
    cutoffs: Mapping[str, Cutoff]
    turns: Turns
    end: int

    def void(self, event: Event) -> Verdict | None:
        """The verdict if a revocation or the floor voids an event; else None."""
        cutoff = self.cutoffs.get(event.author)
        if cutoff is not None and cutoff.voids(event):
            return _CUTOFF
        return _FLOOR if self.floor is not None and self.floor.voids(event) else None


def regimes_of(
    events: Sequence[Event], chains: Mapping[str, Chain], roster: Roster
) -> tuple[Regime, ...]:
    """The regimes from the lowest floor up; the last one is the roster's own.

    `events` are the membership events in total order.
    """
    turns = _turns_of(events, roster)
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
            settled = settle_membership(covered, chains, roster.community_id)
            own = _turns_of(covered, settled)
            yield Regime(floor, settled.outcomes, settled.cutoffs, own, len(own))


class _Progress:
    """Follows the roster's pass; what a floor covers is mostly a prefix of it."""

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
        # Forks and unchained events are rare enough to be checked one by one.
        self._is_plain &= event.author_seq is not None and event.author_seq != seq
        if event.author_seq is not None and event.author_seq > seq:
            self._heads[event.author] = event.author_seq, event.digest
        if event.event_type == REVOKED and self._roster.outcomes[event.digest].node is not None:
            target, cutoff = event.data["target_node_id"], cutoff_of(event)
            known = self.cutoffs.get(target)
            self.cutoffs[target] = cutoff if known is None else known.also(cutoff)


def _turns_of(events: Sequence[Event], roster: Roster) -> Turns:
    outcomes = ((event, roster.outcomes[event.digest]) for event in events)
    return [
        (event.position, outcome)
        for event, outcome in outcomes
        if outcome.node is not None or outcome.policy is not None
    ]


VerdictSink = Callable[[Event, Verdict], None]
"""Told of every event and its verdict, in total order."""

_NEVER: Final = 2**63
_QUARANTINED: Final = VERDICTS["lamport.gap"]
_FOREIGN: Final = VERDICTS["community.foreign"]
_LEVEL: Final = VERDICTS["membership.level"]
_REQUIRED: Final = VERDICTS["chain.required"]


@dataclass(frozen=True, slots=True)
class FoldBasis:
    """Everything that content is judged by.

    Attributes:
        reach: The greatest lamport that is not quarantined.
        membership: The membership events, in order.
        roster: The result of all of them.
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

    def state(self, content: Content) -> CommunityState:
        """The state with this content."""
        return CommunityState(self.community_id, self.roster, self.chains, content, self.counts)


def fold_membership(
    community_id: str, chains: Mapping[str, Chain], reached: int, membership: Sequence[Event]
) -> FoldBasis:
    """Fold the membership events, which come in total order."""
    ours = [
        event
        for event in membership
        if event.lamport <= reached and event.community_id == community_id
    ]
    roster = settle_membership(ours, chains, community_id)
    regimes = regimes_of(ours, chains, roster)
    found = Counter(outcome.verdict.status for outcome in roster.outcomes.values())
    counts = {status: found[status] for status in Status}
    return FoldBasis(community_id, chains, reached, membership, roster, regimes, counts)


def fold_history(
    history: History, community_id: str, *, sink: VerdictSink | None = None
) -> CommunityState:
    """Judge every event of a history; returns the resulting state."""
    on = read_basis(history, community_id)
    content = Content()
    judge_events(on, content, history.in_order(None), sink)
    return on.state(content)


def read_basis(history: History, community_id: str) -> FoldBasis:
    """The basis for judging the events of a history."""
    reached = reachable_lamport(history.lamports())
    chains = all_chains(history.authors(), reached)
    return fold_membership(community_id, chains, reached, list(history.membership()))


@dataclass(frozen=True, slots=True)
class FoldResult:
    """A state, and the verdict on every event by its digest."""

    state: CommunityState
    verdicts: Mapping[bytes, Verdict]


def fold_events(events: Iterable[Event], community_id: str) -> FoldResult:
    """Fold events in memory; see `fold_history`. Those of another community are refused."""
    verdicts: dict[bytes, Verdict] = {}
    ours = []
    for event in events:
        if event.community_id == community_id:
            ours.append(event)
        else:
            verdicts[event.digest] = _FOREIGN

    def note(event: Event, verdict: Verdict) -> None:
        verdicts[event.digest] = verdict

    return FoldResult(fold_history(MemoryHistory(ours), community_id, sink=note), verdicts)


def judge_events(
    on: FoldBasis,
    content: Content,
    events: Iterable[Event],
    sink: VerdictSink | None,
    after: Position | None = None,
) -> None:
    """Judge events in total order after a position, and apply them."""
    counts, outcomes, reached = content.counts, on.roster.outcomes, on.reach
    last: Event | None = None
    regimes = iter(on.regimes)
    court = _Judge(on, next(regimes), after)
    for event in events:
        lamport = event.lamport
        while lamport > court.upto:
            court = _Judge(on, next(regimes), None)
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


def late_verdict(on: FoldBasis, event: Event) -> Verdict | None:
    """The verdict on a late event that changes nothing judged before; None if it may.

    Only an event voided by a revocation or a floor changes nothing.
    """
    return regime_at(on, event.lamport).void(event)


def regime_at(on: FoldBasis, lamport: int) -> Regime:
    """The regime for content at a lamport."""
    return next(each for each in on.regimes if each.floor is None or lamport <= each.floor.lamport)


class _Judge:
    """Judges the events of one regime in order, starting after a position."""

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

    def __init__(self, on: FoldBasis, regime: Regime, after: Position | None) -> None:
        self.upto = _NEVER if regime.floor is None else regime.floor.lamport
        self._regime = regime
        self._community_id = on.community_id
        self._chains = on.chains
        self._cutoffs = regime.cutoffs
        self._has_floor = regime.floor is not None
        self._levels: LevelMap = {}
        self._unchained = False
        self._next = 0
        self._next_lamport = -1
        if after is not None:
            self._advance(after)

    def judge(self, event: Event, content: Content) -> Verdict:
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
        return judge_content(content, event, self._levels)

    def meet(self, joined: Event, content: Content) -> None:
        """Learn the manifest of a member that joined, if it counts in this regime."""
        outcome = self._regime.outcomes.get(joined.digest)
        if outcome is not None and outcome.verdict is ACCEPTED:
            learn_manifest(content, joined, joined.data["node_manifest"])

    def _advance(self, before: Position) -> None:
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


_REFUSAL_CODES: Final = {
    "revoked.cutoff": Code.REVOKED,
    "membership.revoked": Code.REVOKED,
    "membership.target": Code.NOT_FOUND,
    "community.missing": Code.NOT_FOUND,
    "chat.recipient": Code.NOT_FOUND,
    "invite.missing": Code.NOT_FOUND,
    "market.missing": Code.NOT_FOUND,
    "chat.missing": Code.NOT_FOUND,
    "file.missing": Code.NOT_FOUND,
    "invite.expired": Code.EXPIRED,
    "invite.withdrawn": Code.EXPIRED,
    "invite.unwitnessed": Code.UNAUTHORIZED,
    "market.ended": Code.EXPIRED,
    "membership.level": Code.UNAUTHORIZED,
    "membership.above": Code.UNAUTHORIZED,
    "membership.signatures": Code.UNAUTHORIZED,
    "root.only": Code.UNAUTHORIZED,
    "root.never": Code.UNAUTHORIZED,
    "market.reason": Code.UNAUTHORIZED,
}


class Trial:
    """A copy of a state to which unsigned events are added.

    `membership` has every membership event in the state, in total order.
    """

    def __init__(self, state: CommunityState, membership: Sequence[Event]) -> None:
        self._content = state.content.copy()
        self._chains = dict(state.chains)
        self._on = fold_membership(
            state.community_id, self._chains, max(state.lamport, 0), membership
        )

    def add(self, event: Event) -> None:
        """Add an event after all others; if it is refused, raise and leave the trial as it was."""
        author, seq = event.author, event.author_seq
        chain = self._chains.get(author, Chain())
        longer = chain.followed_by(ChainLink(author, seq, event.digest, event.prev, event.lamport))
        if longer is None:
            standing = None if seq is None else chain.verdict(seq, event.digest)
            raise _trial_refusal(event, standing)
        self._chains[author] = longer
        before, self._on = self._on, self._with(event)
        verdict = self._judge(event)
        if verdict is not ACCEPTED:
            self._on = before
            self._chains[author] = chain
            raise _trial_refusal(event, verdict)

    def _with(self, event: Event) -> FoldBasis:
        if event.event_type in MEMBERSHIP_TYPES:
            everyone = [*self._on.membership, event]
            return fold_membership(event.community_id, self._chains, event.lamport, everyone)
        return replace(self._on, reach=event.lamport)

    def _judge(self, event: Event) -> Verdict:
        found: list[Verdict] = []
        judge_events(
            self._on, self._content, [event], lambda _, verdict: found.append(verdict), None
        )
        return found[0]


def _trial_refusal(event: Event, verdict: Verdict | None) -> CommunityError:
    if verdict is None:
        return CommunityError(
            Code.INTERNAL_ERROR,
            "the event does not follow its author's last one",
            where=event.author,
        )
    return CommunityError(
        _REFUSAL_CODES.get(verdict.rule, Code.BAD_REQUEST),
        f"the community would refuse this {event.event_type}: {verdict.reason}",
        details={"rule": verdict.rule},
    )
