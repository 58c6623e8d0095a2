"""The state of a log, updated batch by batch; the result equals a full fold.

A late event may change what earlier content was judged by. The replay finds the first position
where that makes a difference (rather too early than too late), rewinds, and judges again. A
snapshot is resumed only if its content would be judged now as it was.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final, Protocol, Self

from accord.community.errors import Code, CommunityError
from accord.community.rules.chains import (
    MEMBERSHIP_TYPES,
    Chain,
    ChainLink,
    History,
    all_chains,
    chain_of,
    reachable_lamport,
)
from accord.community.rules.content import Content
from accord.community.rules.event import Event, Position
from accord.community.rules.fold import (
    FoldBasis,
    Regime,
    fold_membership,
    judge_events,
    late_verdict,
    read_basis,
    regime_at,
)
from accord.community.rules.membership import Cutoff, Floor
from accord.community.rules.state import CommunityState
from accord.community.rules.verdicts import ACCEPTED, VERDICTS, Status, Verdict

END_POSITION: Final = Position(2**63, "", b"")
"""Behind every event."""

_FAR: Final = 2**62


class LinksOf(Protocol):
    """Gives the links of an author, optionally only above a number."""

    def __call__(self, author: str, after: int = 0, /) -> Iterable[ChainLink]: ...  # noqa: D102


def first_difference(old: FoldBasis, new: FoldBasis, links_of: LinksOf) -> Position:
    """The first position at which content that both bases know may be judged differently."""
    return min(
        [END_POSITION, *_of_chains(old, new, links_of), *_of_regimes(old, new, links_of)],
    )


def _at(lamport: int) -> Position:
    return Position(lamport, "", b"")


def _of_chains(old: FoldBasis, new: FoldBasis, links_of: LinksOf) -> Iterator[Position]:
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


def _of_regimes(old: FoldBasis, new: FoldBasis, links_of: LinksOf) -> Iterator[Position]:
    """Compares the regimes below each floor."""
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
    """The first turn that only one of two regimes has."""
    if before.turns is after.turns and before.end == after.end:
        return END_POSITION
    pairs = zip(before.turns[: before.end], after.turns[: after.end], strict=False)
    for was, now in pairs:
        if was[0] != now[0] or was[1][1:] != now[1][1:]:
            return min(was[0], now[0])
    shorter = min(before.end, after.end)
    longer = before if before.end > after.end else after
    return longer.turns[shorter][0] if longer.end > shorter else END_POSITION


def _of_cutoffs(
    before: Regime, after: Regime, links_of: LinksOf, above: int, upto: int
) -> Iterator[Position]:
    for author in sorted(before.cutoffs.keys() | after.cutoffs.keys()):
        was, now = before.cutoffs.get(author), after.cutoffs.get(author)
        if was != now:
            for link in links_of(author):
                if above < link.lamport <= upto and _may_differ(was, now, link):
                    yield _at(link.lamport)


def _may_differ(was: Cutoff | None, now: Cutoff | None, link: ChainLink) -> bool:
    cutoffs = [cutoff for cutoff in (was, now) if cutoff is not None]
    if link.author_seq is None:
        # A link has no event id, so the order within one lamport is unknown.
        return any(link.lamport >= cutoff.position.lamport for cutoff in cutoffs)
    voids = [cutoff.voids_link(link.author_seq, link.digest) for cutoff in cutoffs]
    return voids[0] if len(voids) == 1 else voids[0] != voids[1]


def _of_floors(
    was: Floor | None, now: Floor | None, new: FoldBasis, links_of: LinksOf, above: int, upto: int
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


START_POSITION: Final = Position(-1, "", b"")
"""Before every event."""

REWIND_WINDOW: Final = 10_000
"""How many events can be undone, at least, where there were as many."""

REWIND_COPIES: Final = 4

_Step = tuple[Position, int, Status | None]


class ContentPast:
    """Content that can be rewound as far as `base`, the last event that it started with."""

    def __init__(self, base: Position, content: Content) -> None:
        self.base = base
        self.content = content
        self._copies = [(base, content.copy())]
        self._since_copy = 0
        self._steps: list[_Step] = []
        self._first = base
        self._offset = self._start = 0
        self._forget()

    def note(self, event: Event, status: Status | None) -> None:
        """Record that an event was judged; `status` is None if it was not counted."""
        changes = self.content.changes
        assert changes is not None
        if status is not Status.QUARANTINED:
            self._steps.append((event.position, self._start, status))
        self._start = self._offset + len(changes)
        if len(self._steps) >= 2 * REWIND_WINDOW:
            self._trim()
        self._since_copy += 1
        if self._since_copy % REWIND_WINDOW == 0:
            self._copy(event.position)

    def add(self, statuses: Iterable[Status]) -> None:
        """Count events before everything that can be rewound."""
        for status in statuses:
            for content in (self.content, *(copy for _, copy in self._copies)):
                content.counts[status] += 1

    def rewind(self, touched: Position) -> Position | None:
        """Rewind to before a position; returns the last event that remains."""
        if self._first < touched:
            at = bisect_left(self._steps, touched, key=lambda step: step[0])
            if at < len(self._steps):
                self._undo(at)
            self.content.head = self._steps[-1][0] if self._steps else _or_none(self._first)
            self.content.counts[Status.QUARANTINED] = 0
        else:
            while self._copies[-1][0] >= touched:
                self._copies.pop()
            self.content = self._copies[-1][1].copy()
            self._since_copy = 0
            self._forget()
        while self._copies[-1][0] > (self.content.head or START_POSITION):
            self._copies.pop()
        return self.content.head

    def _forget(self) -> None:
        """Drop everything that could be undone."""
        self.content.changes = []
        self._steps = []
        self._first = self.content.head or START_POSITION
        self._offset = self._start = 0

    def _undo(self, at: int) -> None:
        counts = self.content.counts
        start = self._steps[at][1]
        self.content.undo(start - self._offset)
        for _, _, status in self._steps[at:]:
            if status is not None:
                counts[status] -= 1
        del self._steps[at:]
        self._start = start

    def _trim(self) -> None:
        changes = self.content.changes
        assert changes is not None
        self._first = self._steps[REWIND_WINDOW - 1][0]
        del self._steps[:REWIND_WINDOW]
        start = self._steps[0][1] if self._steps else self._start
        del changes[: start - self._offset]
        self._offset = start

    def _copy(self, position: Position) -> None:
        if self._since_copy < sum(self.content.counts.values()) // REWIND_COPIES:
            return
        copy = self.content.copy()
        copy.head = position
        copy.counts[Status.QUARANTINED] = 0
        self._copies.append((position, copy))
        self._since_copy = 0
        if len(self._copies) > REWIND_COPIES + 1:
            # The first one stays, where all begins.
            del self._copies[1]


def _or_none(position: Position) -> Position | None:
    return None if position == START_POSITION else position


class NeedsHistoryError(CommunityError):
    """A snapshot is not enough: a later event changes what came before it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Code.PARTITION, what, mend="fold the log from its beginning, or from a newer snapshot"
        )


def check_unchanged(state: CommunityState, on: FoldBasis, history: History) -> int:
    """Check that a snapshot's content would be judged now as it was.

    Returns how many content events are void, being too late for a floor. Raises
    `NeedsHistoryError` if a judgement differs.
    """
    head = state.content.head or START_POSITION
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
    then = fold_membership(on.community_id, on.chains, on.reach, below)

    def punctual(author: str, after: int = 0) -> Iterator[ChainLink]:
        return (link for link in history.author(author, after) if link.digest not in late)

    if first_difference(then, on, punctual) <= head:
        raise NeedsHistoryError("what came behind the snapshot changes what came before it")
    return len(late - membership)


class _Counted:
    """The links of an author up to a lamport; counts the content among them."""

    def __init__(self, links: Iterable[ChainLink], upto: int, membership: set[bytes]) -> None:
        self._links = links
        self._upto = upto
        self._membership = membership
        self.content = 0

    def __iter__(self) -> Iterator[ChainLink]:
        for link in self._links:
            if link.lamport <= self._upto:
                self.content += link.digest not in self._membership
                yield link


def _late(links: Iterable[ChainLink], was: Chain, upto: int, on: FoldBasis) -> set[bytes]:
    """Events that a floor does not cover, if the snapshot has everything else."""
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
    links: Iterable[ChainLink], was: Chain, on: FoldBasis, upto: int, late: set[bytes]
) -> None:
    for link in links:
        seq = link.author_seq
        if seq is None or link.lamport > upto or link.digest in late:
            continue
        if was.verdict(seq, link.digest) is not on.chains[link.author].verdict(seq, link.digest):
            raise NeedsHistoryError("a chain forks or breaks before the snapshot")


_FOREIGN: Final = VERDICTS["community.foreign"]


@dataclass(frozen=True, slots=True)
class Advance:
    """The state after a batch, and all events with a new verdict, in total order."""

    state: CommunityState
    changed: list[tuple[Event, Verdict]]


class Replay:
    """The state of one log."""

    def __init__(self, community_id: str) -> None:
        self._community_id = community_id
        self._ground = fold_membership(community_id, {}, 0, [])
        self._past = ContentPast(START_POSITION, Content())
        self._highest = 0
        self._not_standing: dict[bytes, Verdict] = {}

    @property
    def state(self) -> CommunityState:
        """The state after the events so far."""
        return self._ground.state(self._past.content)

    @property
    def membership(self) -> Sequence[Event]:
        """Every membership event so far, in total order."""
        return self._ground.membership

    @classmethod
    def resume(cls, state: CommunityState, history: History) -> "tuple[Self, Advance]":
        """Start from a snapshot, and judge the events after it.

        Chains and membership are folded from the history, which always has them completely. Raises
        `NeedsHistoryError` if content of the snapshot would be judged differently now.
        """
        replay = cls(state.community_id)
        on = replay._ground = read_basis(history, state.community_id)
        replay._highest = max(history.lamports(), default=0)
        came_late = check_unchanged(state, on, history)
        head = state.content.head or START_POSITION
        replay._past = ContentPast(head, state.content.copy())
        replay._past.content.counts[Status.VOID] += came_late
        replay._past.content.counts[Status.QUARANTINED] = 0
        changed = replay._judge(history.in_order(_or_none(head)), frozenset(), is_rewound=False)
        return replay, Advance(replay.state, changed)

    def advance(self, history: History, new: Iterable[Event]) -> Advance:
        """Add new events; `history` has exactly these and the earlier ones.

        Raises `NeedsHistoryError`, adding nothing, if they change what the snapshot covers.
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
            END_POSITION if on.regimes is old.regimes else first_difference(old, on, history.author)
        )
        if on.reach > old.reach and self._highest > old.reach:
            changed_from = min(changed_from, Position(old.reach + 1, "", b""))
        behind = [event for event in fresh if event.position <= self._past.base]
        told = [
            (event, late_verdict(on, event))
            for event in behind
            if event.event_type not in MEMBERSHIP_TYPES
        ]
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
        if changed_from == END_POSITION and touched > (self._past.content.head or START_POSITION):
            ahead = fresh[len(behind) :]
            changed += self._judge(ahead, unique.keys(), is_rewound=False)
        elif touched != END_POSITION:
            after = self._past.rewind(touched)
            changed += self._judge(history.in_order(after), unique.keys(), is_rewound=True)
        changed.sort(key=lambda each: each[0].position)
        return Advance(self.state, changed)

    def _renewed(self, history: History, fresh: Sequence[Event]) -> FoldBasis:
        old = self._ground
        reached = self._reach(history, fresh)
        chains, is_simple = self._chains(history, fresh, reached)
        added = [event for event in fresh if event.event_type in MEMBERSHIP_TYPES]
        if is_simple and not added:
            return replace(old, chains=chains, reach=reached)
        membership = list(old.membership)
        for event in added:
            insort(membership, event, key=lambda each: each.position)
        return fold_membership(self._community_id, chains, reached, membership)

    def _chains(
        self, history: History, fresh: Sequence[Event], reached: int
    ) -> tuple[dict[str, Chain], bool]:
        """The chains, and whether all new events simply extend them."""
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
            link = ChainLink(author, seq, event.digest, event.prev, event.lamport)
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
        reached = reachable_lamport((event.lamport for event in fresh), self._ground.reach)
        if max(self._highest, fresh[-1].lamport) > reached:
            # Quarantined events may be within reach now.
            reached = reachable_lamport(history.lamports())
        return reached

    def _membership_changes(
        self, old: FoldBasis, fresh: Iterable[bytes]
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

        judge_events(self._ground, past.content, events, note, past.content.head)
        return changed
