"""Stage (b), one pass: who belongs, with which right, after each membership event in order.

A pass is given the revocations that are known beforehand, because they reach back behind their own
position. Which those are is `settling`'s to find out.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from accord.community.envelope import Event, Position
from accord.community.envelope.kinds import KINDS
from accord.community.envelope.names import Level
from accord.community.fold.chains import Chain, verdict_of
from accord.community.fold.standing import (
    Cutoff,
    Floor,
    Invite,
    Member,
    Outcome,
    cutoff_of,
    floor_of,
    signers,
)
from accord.community.fold.verdicts import ACCEPTED, VERDICTS, Verdict
from accord.kernel.clock import parse_time

REVOKED: Final = "community.member.revoked"
CREATED: Final = "community.created"
JOINED: Final = "community.member.joined"
_BY_ROOT: Final = frozenset({CREATED, "community.policy.updated", "community.member.promoted"})
_EQUIVOCATION: Final = VERDICTS["equivocation"]
_CUTOFF: Final = VERDICTS["revoked.cutoff"]
_LEVELS: Final = {level.text: level for level in Level}


def is_known(event: Event) -> bool:
    """Whether this code knows the version of a membership event; its data kept the schema then."""
    return event.schema_version <= KINDS[event.event_type].version


class Roster:
    """Who belongs; `take` is called with the membership events in total order.

    Args:
        community_id: Whose log it is.
        chains: The authors' chains.
        known: Revocations that count from the start and are never taken back.
        reaching: Revocations that reach back: they have no effect unless they are known.

    Attributes:
        members: Who belongs at this point.
        invites: By event id and invitee: of each inviter, the first.
        cutoffs: Of everybody revoked, from the start where it is known beforehand.
        revoked: Of those whose revocation the pass has reached.
        floors: The retention floors, in order.
        outcomes: What each event came to, by digest.
        known: The revocations that count from the start.
        reaching: Those that reach back.
        holding: The revocations that hold by themselves.
        seniority: Of each of those, where its earliest signer was admitted, and its id.
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
        self.invites: dict[tuple[str, str], tuple[Invite, ...]] = {}
        self.cutoffs: dict[str, Cutoff] = {}
        self.revoked: dict[str, Cutoff] = {}
        self.floors: list[Floor] = []
        self.outcomes: dict[bytes, Outcome] = {}
        self.holding: set[bytes] = set()
        self.seniority: dict[bytes, tuple[Position, str]] = {}
        self._chains = chains
        self._unchained_from: int | None = None
        self.reaching = reaching
        self.known = frozenset(event.digest for event in known)
        for event in known:
            self._cut(event)

    def level(self, node_id: str) -> Level:
        """How far a node is trusted at this point."""
        member = self.members.get(node_id)
        return Level.UNKNOWN if member is None else member.level

    def take(self, event: Event) -> None:
        """Judge the next event and let it take effect."""
        cutoff = self.cutoffs.get(event.author)
        if cutoff is not None and cutoff.voids(event):
            verdict: Verdict | None = _CUTOFF
        else:
            verdict = self._of_chain(event)
        if verdict is None:
            outcome = self._judge(event)
        elif verdict is _EQUIVOCATION and event.event_type != JOINED:
            # Others relied on what an equivocator granted, and it could have granted as much
            # without forking: for others it stands, until a revocation takes it away.
            outcome = self._judge(event)._replace(verdict=verdict)
        else:
            outcome = Outcome(verdict)
        if event.digest in self.known:
            outcome = self._uphold(event, outcome)
        self.outcomes[event.digest] = outcome

    def _of_chain(self, event: Event) -> Verdict | None:
        if event.author_seq is None:
            allowed = self.policy is not None and self.policy.get("unchained_events", False)
            return None if allowed else VERDICTS["chain.required"]
        return verdict_of(event, self._chains)

    def _judge(self, event: Event) -> Outcome:
        if event.community_id != self.community_id:
            return _refused("community.foreign")
        if not is_known(event):
            return _refused("schema.newer")
        if self.policy is None and event.event_type != CREATED:
            return _refused("community.missing")
        if event.author == self.community_id and event.event_type not in _BY_ROOT:
            return _refused("root.never")
        return _JUDGES[event.event_type](self, event)

    def _uphold(self, event: Event, outcome: Outcome) -> Outcome:
        """Let what is known take its effect, also where it would not hold by itself now."""
        if outcome.node is None:
            outcome = self._revoke(event)
        is_upheld = outcome.verdict is not _EQUIVOCATION
        return outcome._replace(verdict=ACCEPTED) if is_upheld else outcome

    def _created(self, event: Event) -> Outcome:
        founder = event.data["founder_node_id"]
        is_first = event.author_seq == 1 and event.lamport == 0 and self.policy is None
        if event.author != self.community_id or not is_first or founder == self.community_id:
            return _refused("community.founded")
        self.name = event.data["name"]
        self.created_at = event.wall_clock
        outcome = self._admit(founder, Level.ANCHOR, event, by=event.author)
        return outcome._replace(policy=self._enforce(event))

    def _policy_updated(self, event: Event) -> Outcome:
        if event.author != self.community_id:
            return _refused("root.only")
        return Outcome(ACCEPTED, policy=self._enforce(event))

    def _enforce(self, event: Event) -> Mapping[str, Any]:
        policy: Mapping[str, Any] = event.data["policy"]
        self.policy = policy
        if self._unchained_from is None and policy.get("unchained_events", False):
            self._unchained_from = event.lamport
        return policy

    def _invited(self, event: Event) -> Outcome:
        data = event.data
        invitee, level = data["invitee_node_id"], _LEVELS[data["initial_level"]]
        if invitee in self.revoked:
            return _refused("membership.revoked")
        if invitee in self.members:
            return _refused("membership.already")
        least = Level.MEMBER if self._policy("default_member_can_invite", 1) else Level.TRUSTED
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
        invite = Invite(event.author, level, data["expires_at"], event.lamport, redeemed=False)
        self.invites[name] = (*others, invite)
        return Outcome(ACCEPTED)

    def _joined(self, event: Event) -> Outcome:
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
        fitting = [each for each in below if moment <= parse_time(each.expires_at)]
        if not fitting:
            return _refused("invite.expired")
        manifest = data["node_manifest"]
        if (manifest["node_id"], manifest["community_id"]) != (event.author, self.community_id):
            return _refused("invite.manifest")
        # Others may have used the invite's id too; whoever did takes nothing from it.
        best = max(fitting, key=lambda each: each.level)
        self.invites[name] = tuple(
            each._replace(redeemed=True) if each is best else each for each in invites
        )
        return self._admit(event.author, best.level, event, by=best.inviter)

    def _promoted(self, event: Event) -> Outcome:
        target, level = event.data["target_node_id"], _LEVELS[event.data["new_level"]]
        if event.author != self.community_id:
            if rule := self._unsigned(event, "min_signatures_to_promote", 1):
                return _refused(rule)
            if level > self.level(event.author):
                return _refused("membership.above")
        return self._move(target, level, level > self.level(target))

    def _demoted(self, event: Event) -> Outcome:
        target, level = event.data["target_node_id"], _LEVELS[event.data["new_level"]]
        if rule := self._unsigned(event, "min_signatures_to_demote", 3):
            return _refused(rule)
        return self._move(target, level, level < self.level(target))

    def _revoked(self, event: Event) -> Outcome:
        target = event.data["target_node_id"]
        is_known = event.digest in self.known
        if event.digest in self.reaching and not is_known:
            return _refused("membership.reach")
        # What is known may have undone its own target's admission.
        if target not in self.members and target not in self.revoked and not is_known:
            return _refused("membership.target")
        if rule := self._unsigned(event, "min_signatures_to_revoke", 3):
            return _refused(rule)
        admitted = [self.members[each].since for each in signers(event) if each in self.members]
        self.holding.add(event.digest)
        self.seniority[event.digest] = min(admitted), event.event_id
        return self._revoke(event)

    def _floored(self, event: Event) -> Outcome:
        if self.level(event.author) < Level.ANCHOR:
            return _refused("membership.level")
        floor = floor_of(event)
        before = self.floors[-1].lamport if self.floors else -1
        if not before < floor.lamport < event.lamport:
            return _refused("floor.lamport")
        if self._unchained_from is not None and self._unchained_from <= floor.lamport:
            return _refused("floor.unchained")
        self.floors.append(floor)
        return Outcome(ACCEPTED)

    def _admit(self, node_id: str, level: Level, event: Event, *, by: str) -> Outcome:
        self.members[node_id] = Member(level, event.wall_clock, by, event.position)
        return Outcome(ACCEPTED, node_id, level)

    def _move(self, target: str, level: Level, changes: bool) -> Outcome:
        member = self.members.get(target)
        if member is None:
            return _refused("membership.target")
        if not changes:
            return _refused("membership.already")
        self.members[target] = member._replace(level=level)
        return Outcome(ACCEPTED, target, level)

    def _revoke(self, event: Event) -> Outcome:
        target = event.data["target_node_id"]
        self._cut(event)
        self.members.pop(target, None)
        self.revoked[target] = self.cutoffs[target]
        return Outcome(ACCEPTED, target)

    def _cut(self, event: Event) -> None:
        target, cutoff = event.data["target_node_id"], cutoff_of(event)
        known = self.cutoffs.get(target)
        self.cutoffs[target] = cutoff if known is None else known.also(cutoff)

    def _unsigned(self, event: Event, policy: str, default: int) -> str | None:
        if self.level(event.author) < Level.TRUSTED:
            return "membership.level"
        few = self._count(event, Level.TRUSTED) < self._policy(policy, default)
        return "membership.signatures" if few else None

    def _count(self, event: Event, least: Level) -> int:
        return sum(self.level(each) >= least for each in signers(event))

    def _policy(self, name: str, default: int) -> int:
        assert self.policy is not None
        return int(self.policy.get(name, default))


def _refused(rule: str) -> Outcome:
    return _REFUSALS[rule]


_REFUSALS: Final = {rule: Outcome(verdict) for rule, verdict in VERDICTS.items()}

_JUDGES: Final[Mapping[str, Callable[[Roster, Event], Outcome]]] = {
    CREATED: Roster._created,  # noqa: SLF001
    "community.policy.updated": Roster._policy_updated,  # noqa: SLF001
    "community.member.invited": Roster._invited,  # noqa: SLF001
    JOINED: Roster._joined,  # noqa: SLF001
    "community.member.promoted": Roster._promoted,  # noqa: SLF001
    "community.member.demoted": Roster._demoted,  # noqa: SLF001
    REVOKED: Roster._revoked,  # noqa: SLF001
    "community.retention.floored": Roster._floored,  # noqa: SLF001
}
