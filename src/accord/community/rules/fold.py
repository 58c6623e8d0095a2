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
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, NamedTuple

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
from accord.community.rules.content import (
    CONTENT_RULES,
    Content,
    LevelMap,
    judge_content,
    learn_manifest,
)
from accord.community.rules.event import Event, Position
from accord.community.rules.formats import Level
from accord.community.rules.membership import (
    CREATED,
    JOINED,
    REVOKED,
    Cutoff,
    Floor,
    MembershipOutcome,
    Roster,
    cutoff_of,
    is_known_version,
    signers,
)
from accord.community.rules.state import CommunityState, JsonObject
from accord.community.rules.verdicts import ACCEPTED, VERDICTS, Status, Verdict
from accord.kernel import canonical

_INVITED: Final = "community.member.invited"
_PROMOTED: Final = "community.member.promoted"


class LevelBounds:
    """Upper bounds of everybody's level; `since` has the earliest possible admissions."""

    def __init__(self, events: Sequence[Event], community_id: str) -> None:
        self.since: dict[str, Position] = {}
        self._community_id = community_id
        self._levels: dict[str, Level] = {}
        self._invited: dict[str, Level] = {}
        self._able: set[bytes] = set()
        for event in events:
            if is_known_version(event):
                self._take(event)

    def could_revoke(self, revocation: Event) -> bool:
        """Whether a signer could have been trusted then, and its target a member.

        One signer is enough if nobody else is trusted, and who has lost trust is not known here.
        """
        return revocation.digest in self._able

    def _take(self, event: Event) -> None:
        kind, data, level = event.event_type, event.data, self._level(event.author)
        if kind == CREATED and event.author == self._community_id:
            self._raise(data["founder_node_id"], Level.ANCHOR, event)
        elif kind == _INVITED and level >= Level.MEMBER:
            invitee, given = data["invitee_node_id"], Level.parse(data["initial_level"])
            known = self._invited.get(invitee, Level.UNKNOWN)
            self._invited[invitee] = max(known, min(given, level))
        elif kind == JOINED:
            self._raise(event.author, self._invited.get(event.author, Level.UNKNOWN), event)
        elif kind == _PROMOTED and level >= Level.TRUSTED:
            target = data["target_node_id"]
            if self._level(target):
                self._raise(target, min(Level.parse(data["new_level"]), level), event)
        elif (
            kind == REVOKED
            and event.author in self.since
            and level >= Level.TRUSTED
            and self._level(data["target_node_id"])
        ):
            self._able.add(event.digest)

    def _level(self, node_id: str) -> Level:
        if node_id == self._community_id:
            return Level.ANCHOR
        return self._levels.get(node_id, Level.UNKNOWN)

    def _raise(self, node_id: str, level: Level, event: Event) -> None:
        if level > self._level(node_id):
            self._levels[node_id] = level
            self.since.setdefault(node_id, event.position)


MAX_CONTESTED_BY_AUTHOR: Final = 3
"""How many contested revocations are weighed of one author."""

MAX_CONTESTED: Final = 9
"""How many are weighed of all."""

MAX_RIVALS: Final = 3
"""How many that hold are weighed against each other at a time, the first ones in order."""

_Known = tuple[Event, ...]


def settle_membership(
    events: Sequence[Event], chains: Mapping[str, Chain], community_id: str
) -> Roster:
    """Fold the membership events, which come in total order.

    A revocation that voids a membership event before its own position takes effect from the start,
    or not at all. docs/concepts/fold.md explains how contested revocations are weighed.
    """
    return _Settlement(events, chains, community_id).settled()


class _Settlement:
    def __init__(
        self, events: Sequence[Event], chains: Mapping[str, Chain], community_id: str
    ) -> None:
        self._events = events
        self._chains = chains
        self._community_id = community_id
        self._in_place, reaching = _sorted_out(events)
        self._reaching = _names(reaching)
        self._able = LevelBounds(events if reaching else (), community_id)
        self._open = [event for event in reaching if self._able.could_revoke(event)]
        self._worlds: dict[frozenset[bytes], Roster] = {}

    def settled(self) -> Roster:
        known = self._uncontested(())
        self._open = self._weighed()
        while (chosen := self._next(known)) is not None:
            known = self._take(known, [chosen])
            known = self._uncontested(known)
        return self._world(known)

    def _uncontested(self, known: _Known) -> _Known:
        """Accept those that are valid together with each other and with all the rest."""
        holding = self._world((*known, *self._open)).holding
        together: Sequence[Event] = self._open
        while len(left := [event for event in together if event.digest in holding]) < len(together):
            together = left
            holding = holding & self._world((*known, *together)).holding
        return self._take(known, together)

    def _take(self, known: _Known, chosen: Sequence[Event]) -> _Known:
        names = _names(chosen)
        self._open = [event for event in self._open if event.digest not in names]
        known = (*known, *chosen)
        taken = _names(known)
        self._worlds = {key: each for key, each in self._worlds.items() if taken <= key}
        return known

    def _weighed(self) -> list[Event]:
        """The contested ones that can be weighed, in order."""
        chosen: list[Event] = []
        of_author: Counter[str] = Counter()
        since = self._able.since
        for event in sorted(self._open, key=lambda event: (since[event.author], event.position)):
            if of_author[event.author] < MAX_CONTESTED_BY_AUTHOR and len(chosen) < MAX_CONTESTED:
                of_author[event.author] += 1
                chosen.append(event)
        return sorted(chosen, key=_position_of)

    def _next(self, known: _Known) -> Event | None:
        holding = (event for event in self._open if self._holds(event, known))
        reaching = list(islice(holding, MAX_RIVALS))
        if not reaching:
            return None
        candidates = sorted(reaching + self._rivals(reaching, known), key=_position_of)
        for event in candidates:
            if not any(self._gives_way(event, other, known) for other in candidates):
                return event
        return min(candidates, key=lambda event: self._seniority(event, known))

    def _rivals(self, reaching: Sequence[Event], known: _Known) -> list[Event]:
        at_risk = {signer for event in reaching for signer in signers(event)}
        # One in place voids nothing before it, so it holds with its cutoff as without; but for one
        # whose author is its own target, which voids itself.
        holding = self._world(known).holding
        found = (
            event
            for event in self._in_place
            if event.data["target_node_id"] in at_risk - {event.author}
            and event.digest in holding
            and event not in known
        )
        return list(islice(found, MAX_RIVALS))

    def _gives_way(self, event: Event, other: Event, known: _Known) -> bool:
        if event is other or self._holds(event, (*known, other)):
            return False
        is_mutual = not self._holds(other, (*known, event))
        return not is_mutual or self._seniority(other, known) < self._seniority(event, known)

    def _holds(self, event: Event, known: _Known) -> bool:
        """Whether a revocation is valid by itself, given the known ones and its own cutoff."""
        return event.digest in self._world((*known, event)).holding

    def _seniority(self, event: Event, known: _Known) -> tuple[Position, str]:
        return self._world((*known, event)).seniority[event.digest]

    def _world(self, known: _Known) -> Roster:
        key = _names(known)
        world = self._worlds.get(key)
        if world is None:
            world = Roster(self._community_id, self._chains, known, self._reaching)
            self._worlds[key] = world
            for event in self._events:
                world.take(event)
        return world


def _names(known: Iterable[Event]) -> frozenset[bytes]:
    return frozenset(event.digest for event in known)


def _position_of(event: Event) -> Position:
    return event.position


def _sorted_out(events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """The local revocations, and those that would void an earlier membership event."""
    last_seq: dict[str, int] = {}
    numbered: dict[tuple[str, int], set[str]] = {}
    in_place: list[Event] = []
    reaching: list[Event] = []
    for event in events:
        if event.event_type == REVOKED and is_known_version(event):
            target, cutoff = event.data["target_node_id"], cutoff_of(event)
            others = numbered.get((target, cutoff.last_seq), set()) - {cutoff.last_hash}
            is_reaching = last_seq.get(target, 0) > cutoff.last_seq or others
            (reaching if is_reaching else in_place).append(event)
        if event.author_seq is not None:
            seq = event.author_seq
            last_seq[event.author] = max(last_seq.get(event.author, 0), seq)
            numbered.setdefault((event.author, seq), set()).add(event.hash)
    return in_place, reaching


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
    """A state to which unsigned events are added, without changing it.

    `membership` has every membership event in the state, in total order.
    """

    def __init__(self, state: CommunityState, membership: Sequence[Event]) -> None:
        # Not a copy: an append must not cost more in a long log.
        self._content = state.content.layered()
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


# Content can be judged in partitions. In a first round each event that names something new (a post,
# a message) is judged together with all that its author named. In a second round those that were
# accepted, and everything else, are judged by subject. A partition is any set of whole groups in
# total order, judged by `judge_events`.
NAMING_TYPES: Final = frozenset({"market.post.created", "chat.message.sent"})
"""The types that name something new: their groups in the first round are the authors."""


class Subject(NamedTuple):
    """What an event is about: its group in the second round."""

    kind: str
    name: str


def subject(event: Event) -> Subject:
    """The subject of an event; one with unknown data is its own subject."""
    about = _SUBJECTS.get(event.event_type)
    if about is None or event.schema_version != 1:
        return Subject("event", event.hash)
    return about(event)


def assemble_state(frame: JsonObject, items: Iterable[tuple[str, bytes]]) -> bytes:
    """The bytes of a state, from its object without content and the canonical content items.

    `items` are pairs of section and bytes, grouped by section and in order.
    """
    sections = {
        section: b"[" + b",".join(map(itemgetter(1), of_section)) + b"]"
        for section, of_section in groupby(items, key=itemgetter(0))
    }
    members = (
        canonical.encode(name) + b":" + (sections.get(name) or canonical.encode(frame[name]))
        for name in sorted(frame)
    )
    return b"{" + b",".join(members) + b"}"


def _post(event: Event) -> Subject:
    return Subject("post", event.data.get("target_event_id", event.event_id))


def _message(event: Event) -> Subject:
    return Subject("message", event.data.get("target_event_id", event.event_id))


def _file(event: Event) -> Subject:
    return Subject("file", f"{event.data['cid']} {event.author}")


def _document(event: Event) -> Subject:
    return Subject("document", f"{event.data['corpus']} {event.data['doc_cid']}")


def _node(event: Event) -> Subject:
    return Subject("node", event.author)


_SUBJECTS: Final[Mapping[str, Callable[[Event], Subject]]] = {
    "market.post.created": _post,
    "market.post.updated": _post,
    "market.post.expired": _post,
    "chat.message.sent": _message,
    "chat.message.delivered": _message,
    "chat.message.read": _message,
    "file.cid.advertised": _file,
    "file.cid.unpinned": _file,
    "rag.document.ingested": _document,
    "node.manifest.updated": _node,
    JOINED: _node,
}
assert CONTENT_RULES.keys() <= _SUBJECTS.keys(), "every rule has its subject"
