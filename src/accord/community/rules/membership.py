"""Membership in one pass: members and trust levels after each membership event (stage b).

Members, invites, revocation cutoffs, retention floors, and the resulting roster.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from accord.community.rules.chains import Chain, chain_verdict
from accord.community.rules.event import Event, Position
from accord.community.rules.formats import EVENT_TYPES, Level
from accord.community.rules.verdicts import ACCEPTED, VERDICTS, Verdict
from accord.kernel.clock import parse_time


class Member(NamedTuple):
    """A member; `since` is the position of its admission."""

    level: Level
    added_at: str
    added_by: str
    since: Position


class InviteRecord(NamedTuple):
    """An accepted invite; it is open unless it was redeemed or withdrawn.

    Attributes:
        guarded: Whether its inviter requires a witness for its redemption.
        witnessed: Whether somebody who could have given it saw its holder in time.
    """

    inviter: str
    level: Level
    expires_at: str
    lamport: int
    redeemed: bool
    withdrawn: bool = False
    guarded: bool = False
    witnessed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it was neither redeemed nor withdrawn."""
        return not (self.redeemed or self.withdrawn)

    @property
    def is_redeemable(self) -> bool:
        """Whether no witness is missing."""
        return self.witnessed or not self.guarded


class Cutoff(NamedTuple):
    """Where revocations cut off their target's events.

    Attributes:
        last_seq: The last event that counts, by the strictest revocation.
        last_hash: Its hash, which names the branch.
        position: The position of the first revocation, after which nothing unchained counts.
        revoked_at: The time of that one.
    """

    last_seq: int
    last_hash: str | None
    position: Position
    revoked_at: str

    def voids(self, event: Event) -> bool:
        """Whether an event of the target is after it, whatever its lamport."""
        if event.author_seq is None:
            return event.position >= self.position
        return self.voids_link(event.author_seq, event.digest)

    def voids_link(self, seq: int, digest: bytes) -> bool:
        """Whether the event with this number is after it."""
        if seq == self.last_seq:
            return self.last_hash != "blake3:" + digest.hex()
        return seq > self.last_seq

    def also(self, other: "Cutoff") -> "Cutoff":
        """Both cutoffs combined."""
        least = min(self, other, key=lambda each: (each.last_seq, each.last_hash or ""))
        first = min(self, other, key=lambda each: each.position)
        return Cutoff(least.last_seq, least.last_hash, first.position, first.revoked_at)


class Floor(NamedTuple):
    """A retention floor: content at or below it that is not covered by its heads is too late."""

    lamport: int
    heads: Mapping[str, tuple[int, str]]
    state_digest: str
    position: Position

    def voids(self, event: Event) -> bool:
        """Whether an event is too late."""
        return event.lamport <= self.lamport and not self.covers(
            event.author, event.author_seq, event.digest
        )

    def covers(self, author: str, seq: int | None, digest: bytes) -> bool:
        """Whether an event is within the floor's heads; unchained ones always are."""
        last_seq, last_hash = self.heads.get(author, (0, ""))
        if seq == last_seq:
            return last_hash == "blake3:" + digest.hex()
        return seq is None or seq < last_seq


class MembershipOutcome(NamedTuple):
    """The outcome of a membership event: whose level it changed, the new level, the new policy."""

    verdict: Verdict
    node: str | None = None
    level: Level = Level.UNKNOWN
    policy: Mapping[str, Any] | None = None


def cutoff_of(revocation: Event) -> Cutoff:
    """The cutoff that a revocation sets."""
    data = revocation.data
    return Cutoff(
        data["target_last_seq"],
        data["target_last_hash"],
        revocation.position,
        revocation.wall_clock,
    )


def floor_of(event: Event) -> Floor:
    """The floor that an event sets."""
    heads = {each["author"]: (each["author_seq"], each["hash"]) for each in event.data["heads"]}
    return Floor(event.data["lamport"], heads, event.data["state_digest"], event.position)


def deciders_against(target: str, levels: Mapping[str, Level]) -> frozenset[str]:
    """Who decides about a member if fewer are trusted than the policy wants signatures.

    All trusted members but the target; nobody unless one of them has at least the target's level,
    so that lower members cannot expel higher ones.
    """
    able = {
        name: level for name, level in levels.items() if level >= Level.TRUSTED and name != target
    }
    if max(able.values(), default=Level.UNKNOWN) < levels.get(target, Level.UNKNOWN):
        return frozenset()
    return frozenset(able)


def signatures_needed(wanted: int, target: str, levels: Mapping[str, Level]) -> int:
    """How many must sign against a member: as many as wanted, or all if there are fewer."""
    able = deciders_against(target, levels)
    return min(wanted, len(able)) if able else wanted


def signers(event: Event) -> frozenset[str]:
    """The author and the co-signers of an event, each once."""
    return frozenset(
        (event.author, *(each["node_id"] for each in event.data.get("co_signers", ())))
    )


REVOKED: Final = "community.member.revoked"
CREATED: Final = "community.created"
JOINED: Final = "community.member.joined"
LEFT: Final = "community.member.left"
WITHDRAWN: Final = "community.invite.withdrawn"
# What grants nothing to anybody else, and so is void beyond its author's fork.
_UNSHARED: Final = frozenset({JOINED, LEFT, WITHDRAWN})
_BY_ROOT: Final = frozenset({CREATED, "community.policy.updated", "community.member.promoted"})
_EQUIVOCATION: Final = VERDICTS["equivocation"]
_CUTOFF: Final = VERDICTS["revoked.cutoff"]
_LEVELS: Final = {level.text: level for level in Level}


def is_known_version(event: Event) -> bool:
    """Whether this code knows the version of a membership event, whose data is then valid."""
    return event.schema_version <= EVENT_TYPES[event.event_type].version


class Roster:
    """The members; `take` is called with the membership events in total order.

    Attributes:
        members: The current members.
        invites: By event id and invitee: of each inviter, the first.
        guards: Inviters whose further invites need a witness.
        cutoffs: Of everybody revoked, from the start where known in advance.
        revoked: Of those whose revocation the pass has reached.
        left: Former members that left by themselves.
        floors: The retention floors, in order.
        outcomes: The outcome of each event, by digest.
        known: Revocations that count from the start and are never taken back.
        reaching: Revocations that reach back; they have no effect unless known.
        holding: The revocations that are valid by themselves.
        seniority: For each of those, where its earliest signer was admitted, and its id.
    """

    def __init__(
        self,
        community_id: str,
        chains: Mapping[str, Chain],
        known: Iterable[Event] = (),
        reaching: frozenset[bytes] = frozenset(),
    ) -> None:
        self.community_id = community_id
        self.name = ""
        self.created_at = ""
        self.policy: Mapping[str, Any] | None = None
        self.members: dict[str, Member] = {}
        self.invites: dict[tuple[str, str], tuple[InviteRecord, ...]] = {}
        self.guards: set[str] = set()
        self.cutoffs: dict[str, Cutoff] = {}
        self.revoked: dict[str, Cutoff] = {}
        self.left: set[str] = set()
        self.floors: list[Floor] = []
        self.outcomes: dict[bytes, MembershipOutcome] = {}
        self.holding: set[bytes] = set()
        self.seniority: dict[bytes, tuple[Position, str]] = {}
        self._chains = chains
        self._unchained_from: int | None = None
        self.reaching = reaching
        self.known = frozenset(event.digest for event in known)
        for event in known:
            self._cut(event)

    def level(self, node_id: str) -> Level:
        """The current trust level of a node."""
        member = self.members.get(node_id)
        return Level.UNKNOWN if member is None else member.level

    def is_known(self, node_id: str) -> bool:
        """Whether a node is the root, is or was a member, or was invited."""
        return (
            node_id in self.members
            or node_id in self.revoked
            or node_id in self.left
            or node_id == self.community_id
            or any(invitee == node_id for _, invitee in self.invites)
        )

    @property
    def least_inviter(self) -> Level:
        """The lowest level that may invite, by the policy in force."""
        by_all = (self.policy or {}).get("default_member_can_invite", True)
        return Level.MEMBER if by_all else Level.TRUSTED

    def take(self, event: Event) -> None:
        """Judge the next event and apply it."""
        cutoff = self.cutoffs.get(event.author)
        if cutoff is not None and cutoff.voids(event):
            verdict: Verdict | None = _CUTOFF
        else:
            verdict = self._of_chain(event)
        if verdict is None:
            outcome = self._judge(event)
        elif verdict is _EQUIVOCATION and event.event_type not in _UNSHARED:
            # Others relied on what an equivocator granted, and it could have granted as much
            # without forking: for others it stands, until a revocation takes it away.
            outcome = self._judge(event)._replace(verdict=verdict)
        else:
            outcome = MembershipOutcome(verdict)
        if event.digest in self.known:
            outcome = self._uphold(event, outcome)
        self.outcomes[event.digest] = outcome

    def _of_chain(self, event: Event) -> Verdict | None:
        if event.author_seq is None:
            allowed = self.policy is not None and self.policy.get("unchained_events", False)
            return None if allowed else VERDICTS["chain.required"]
        return chain_verdict(event, self._chains)

    def _judge(self, event: Event) -> MembershipOutcome:
        if event.community_id != self.community_id:
            return _refused("community.foreign")
        if not is_known_version(event):
            return _refused("schema.newer")
        if self.policy is None and event.event_type != CREATED:
            return _refused("community.missing")
        if event.author == self.community_id and event.event_type not in _BY_ROOT:
            return _refused("root.never")
        return _JUDGES[event.event_type](self, event)

    def _uphold(self, event: Event, outcome: MembershipOutcome) -> MembershipOutcome:
        """Apply a known revocation, even if it would not be valid by itself now."""
        if outcome.node is None:
            outcome = self._revoke(event)
        is_upheld = outcome.verdict is not _EQUIVOCATION
        return outcome._replace(verdict=ACCEPTED) if is_upheld else outcome

    def _created(self, event: Event) -> MembershipOutcome:
        founder = event.data["founder_node_id"]
        is_first = event.author_seq == 1 and event.lamport == 0 and self.policy is None
        if event.author != self.community_id or not is_first or founder == self.community_id:
            return _refused("community.founded")
        self.name = event.data["name"]
        self.created_at = event.wall_clock
        outcome = self._admit(founder, Level.ANCHOR, event, by=event.author)
        return outcome._replace(policy=self._enforce(event))

    def _policy_updated(self, event: Event) -> MembershipOutcome:
        if event.author != self.community_id:
            return _refused("root.only")
        return MembershipOutcome(ACCEPTED, policy=self._enforce(event))

    def _enforce(self, event: Event) -> Mapping[str, Any]:
        policy: Mapping[str, Any] = event.data["policy"]
        self.policy = policy
        if self._unchained_from is None and policy.get("unchained_events", False):
            self._unchained_from = event.lamport
        return policy

    def _invited(self, event: Event) -> MembershipOutcome:
        data = event.data
        invitee, level = data["invitee_node_id"], _LEVELS[data["initial_level"]]
        if invitee in self.revoked:
            return _refused("membership.revoked")
        if invitee in self.members:
            return _refused("membership.already")
        least = self.least_inviter
        if self.level(event.author) < least:
            return _refused("membership.level")
        if level > self.level(event.author):
            return _refused("membership.above")
        if self._count(event, least) < self._policy("min_signatures_to_invite", 1):
            return _refused("membership.signatures")
        name = event.event_id, invitee
        others = self.invites.get(name, ())
        if any(each.inviter == event.author for each in others):
            return _refused("membership.already")
        invite = InviteRecord(
            event.author,
            level,
            data["expires_at"],
            event.lamport,
            redeemed=False,
            guarded=event.author in self.guards,
        )
        self.invites[name] = (*others, invite)
        return MembershipOutcome(ACCEPTED)

    def _guarded(self, event: Event) -> MembershipOutcome:
        if self.level(event.author) < Level.MEMBER:
            return _refused("membership.level")
        if event.author in self.guards:
            return _refused("membership.already")
        self.guards.add(event.author)
        return MembershipOutcome(ACCEPTED)

    def _witnessed(self, event: Event) -> MembershipOutcome:
        """Somebody who could have given an invite attests that its holder came in time.

        The date of an event is its author's claim, so a joiner could redeem an expired invite with
        an old date. Whoever could give the invite again gains nothing by a false date.
        """
        name = event.data["invite_event_id"], event.data["invitee_node_id"]
        invites = self.invites.get(name, ())
        if self.level(event.author) < self.least_inviter:
            return _refused("membership.level")
        below = [each for each in invites if each.lamport < event.lamport]
        if not below:
            return _refused("names.later" if invites else "invite.missing")
        given = [each for each in below if each.level <= self.level(event.author)]
        if not given:
            return _refused("membership.above")
        if self._policy("min_signatures_to_invite", 1) > 1:
            # Nobody could give it again alone, so only its inviter's word counts.
            given = [each for each in given if each.inviter == event.author]
            if not given:
                return _refused("membership.signatures")
        moment = parse_time(event.wall_clock)
        standing = [each for each in given if moment <= parse_time(each.expires_at)]
        if not standing:
            return _refused("invite.expired")
        if all(each.witnessed for each in standing):
            return _refused("membership.already")
        # A witness who knows of a withdrawal gives no word; one who could invite anew may.
        self.invites[name] = tuple(
            each._replace(witnessed=True, withdrawn=False) if each in standing else each
            for each in invites
        )
        return MembershipOutcome(ACCEPTED)

    def _joined(self, event: Event) -> MembershipOutcome:
        data = event.data
        if event.author in self.revoked:
            return _refused("membership.revoked")
        if event.author in self.members:
            return _refused("membership.already")
        name = data["invite_event_id"], event.author
        invites = self.invites.get(name, ())
        below = [each for each in invites if each.lamport < event.lamport]
        if not below:
            return _refused("names.later" if invites else "invite.missing")
        moment = parse_time(event.wall_clock)
        standing = [each for each in below if not each.withdrawn]
        if not standing:
            return _refused("invite.withdrawn")
        fitting = [each for each in standing if moment <= parse_time(each.expires_at)]
        if not fitting:
            return _refused("invite.expired")
        fitting = [each for each in fitting if each.is_redeemable]
        if not fitting:
            return _refused("invite.unwitnessed")
        manifest = data["node_manifest"]
        if (manifest["node_id"], manifest["community_id"]) != (event.author, self.community_id):
            return _refused("invite.manifest")
        # Others may have used the invite's id too; whoever did takes nothing from it.
        best = max(fitting, key=lambda each: each.level)
        self.invites[name] = tuple(
            each._replace(redeemed=True) if each is best else each for each in invites
        )
        return self._admit(event.author, best.level, event, by=best.inviter)

    def _withdrawn(self, event: Event) -> MembershipOutcome:
        """Withdraw an invite, as its inviter or any trusted member.

        Positions are claims of their authors, too. A witnessed invite can no longer be withdrawn,
        or a withdrawal with an old position would undo a membership.
        """
        data = event.data
        name = data["invite_event_id"], data["invitee_node_id"]
        invites = self.invites.get(name, ())
        below = [each for each in invites if each.lamport < event.lamport]
        if not below:
            return _refused("names.later" if invites else "invite.missing")
        level = self.level(event.author)
        own = [
            each
            for each in below
            if level >= Level.TRUSTED or (level >= Level.MEMBER and each.inviter == event.author)
        ]
        if not own:
            return _refused("membership.level")
        standing = [each for each in own if each.is_open and not each.witnessed]
        if not standing:
            return _refused("membership.already")
        moment = parse_time(event.wall_clock)
        fitting = [each for each in standing if moment <= parse_time(each.expires_at)]
        if not fitting:
            return _refused("invite.expired")
        self.invites[name] = tuple(
            each._replace(withdrawn=True) if each in fitting else each for each in invites
        )
        return MembershipOutcome(ACCEPTED)

    def _left(self, event: Event) -> MembershipOutcome:
        if event.author not in self.members:
            return _refused("membership.target")
        del self.members[event.author]
        self.left.add(event.author)
        return MembershipOutcome(ACCEPTED, event.author)

    def _promoted(self, event: Event) -> MembershipOutcome:
        target, level = event.data["target_node_id"], _LEVELS[event.data["new_level"]]
        if event.author != self.community_id:
            if rule := self._unsigned(event, "min_signatures_to_promote", 1):
                return _refused(rule)
            if level > self.level(event.author):
                return _refused("membership.above")
        return self._move(target, level, level > self.level(target))

    def _demoted(self, event: Event) -> MembershipOutcome:
        target, level = event.data["target_node_id"], _LEVELS[event.data["new_level"]]
        if rule := self._unsigned(event, "min_signatures_to_demote", 3, target):
            return _refused(rule)
        return self._move(target, level, level < self.level(target))

    def _revoked(self, event: Event) -> MembershipOutcome:
        target = event.data["target_node_id"]
        is_known = event.digest in self.known
        if event.digest in self.reaching and not is_known:
            return _refused("membership.reach")
        # What is known may have undone its own target's admission; who leaves is not out of reach.
        is_subject = target in self.members or target in self.revoked or target in self.left
        if not is_subject and not is_known:
            return _refused("membership.target")
        if rule := self._unsigned(event, "min_signatures_to_revoke", 3, target):
            return _refused(rule)
        admitted = [self.members[each].since for each in signers(event) if each in self.members]
        self.holding.add(event.digest)
        self.seniority[event.digest] = min(admitted), event.event_id
        return self._revoke(event)

    def _floored(self, event: Event) -> MembershipOutcome:
        if self.level(event.author) < Level.ANCHOR:
            return _refused("membership.level")
        floor = floor_of(event)
        before = self.floors[-1].lamport if self.floors else -1
        if not before < floor.lamport < event.lamport:
            return _refused("floor.lamport")
        if self._unchained_from is not None and self._unchained_from <= floor.lamport:
            return _refused("floor.unchained")
        self.floors.append(floor)
        return MembershipOutcome(ACCEPTED)

    def _admit(self, node_id: str, level: Level, event: Event, *, by: str) -> MembershipOutcome:
        self.members[node_id] = Member(level, event.wall_clock, by, event.position)
        self.left.discard(node_id)
        return MembershipOutcome(ACCEPTED, node_id, level)

    def _move(self, target: str, level: Level, changes: bool) -> MembershipOutcome:
        member = self.members.get(target)
        if member is None:
            return _refused("membership.target")
        if not changes:
            return _refused("membership.already")
        self.members[target] = member._replace(level=level)
        return MembershipOutcome(ACCEPTED, target, level)

    def _revoke(self, event: Event) -> MembershipOutcome:
        target = event.data["target_node_id"]
        self._cut(event)
        self.members.pop(target, None)
        self.revoked[target] = self.cutoffs[target]
        return MembershipOutcome(ACCEPTED, target)

    def _cut(self, event: Event) -> None:
        target, cutoff = event.data["target_node_id"], cutoff_of(event)
        known = self.cutoffs.get(target)
        self.cutoffs[target] = cutoff if known is None else known.also(cutoff)

    def _unsigned(
        self, event: Event, policy: str, default: int, target: str | None = None
    ) -> str | None:
        """Why there are too few signatures; None if there are enough.

        Against a target it is also enough if everybody who could sign has signed.
        """
        if self.level(event.author) < Level.TRUSTED:
            return "membership.level"
        if self._count(event, Level.TRUSTED) >= self._policy(policy, default):
            return None
        if target is not None and self._is_unanimous(event, target):
            return None
        return "membership.signatures"

    def _is_unanimous(self, event: Event, target: str) -> bool:
        able = deciders_against(target, {name: each.level for name, each in self.members.items()})
        return bool(able) and able <= signers(event)

    def _count(self, event: Event, least: Level) -> int:
        return sum(self.level(each) >= least for each in signers(event))

    def _policy(self, name: str, default: int) -> int:
        assert self.policy is not None
        return int(self.policy.get(name, default))


def _refused(rule: str) -> MembershipOutcome:
    return _REFUSALS[rule]


_REFUSALS: Final = {rule: MembershipOutcome(verdict) for rule, verdict in VERDICTS.items()}

_JUDGES: Final[Mapping[str, Callable[[Roster, Event], MembershipOutcome]]] = {
    CREATED: Roster._created,  # noqa: SLF001
    "community.policy.updated": Roster._policy_updated,  # noqa: SLF001
    "community.member.invited": Roster._invited,  # noqa: SLF001
    WITHDRAWN: Roster._withdrawn,  # noqa: SLF001
    "community.invites.guarded": Roster._guarded,  # noqa: SLF001
    "community.invite.witnessed": Roster._witnessed,  # noqa: SLF001
    JOINED: Roster._joined,  # noqa: SLF001
    LEFT: Roster._left,  # noqa: SLF001
    "community.member.promoted": Roster._promoted,  # noqa: SLF001
    "community.member.demoted": Roster._demoted,  # noqa: SLF001
    REVOKED: Roster._revoked,  # noqa: SLF001
    "community.retention.floored": Roster._floored,  # noqa: SLF001
}
