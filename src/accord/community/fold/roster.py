"""Stage (b), one pass: who belongs, with which right, after each membership event in order.

A pass is given what is known beforehand: revocations and floors that reach back behind their own
position. Which those are is `settling`'s to find out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from accord.community.envelope import Event, Position
from accord.community.envelope.kinds import KINDS
from accord.community.envelope.names import Level
from accord.community.fold.chains import Chain, verdict_of
from accord.community.fold.verdicts import ACCEPTED, VERDICTS, Verdict
from accord.kernel.clock import parse_time

REVOKED: Final = "community.member.revoked"
FLOORED: Final = "community.retention.floored"
_JOINED: Final = "community.member.joined"
_BY_ROOT: Final = frozenset(
    {"community.created", "community.policy.updated", "community.member.promoted"}
)
_EQUIVOCATION: Final = VERDICTS["equivocation"]


class Member(NamedTuple):
    """Somebody who belongs; `since` is where in the log it was admitted."""

    level: Level
    added_at: str
    added_by: str
    since: Position


class Cutoff(NamedTuple):
    """Where a revocation ends what its target could say: the last event that counts."""

    last_seq: int
    last_hash: str | None
    position: Position
    revoked_at: str

    def voids(self, event: Event) -> bool:
        """Whether an event of the target lies beyond it, whatever its lamport."""
        if event.author_seq is None:
            return event.position >= self.position
        return self.voids_link(event.author_seq, event.digest)

    def voids_link(self, seq: int, digest: bytes) -> bool:
        """Whether the event with this number lies beyond it."""
        if seq == self.last_seq:
            return self.last_hash != "blake3:" + digest.hex()
        return seq > self.last_seq


class Invite(NamedTuple):
    """A standing invite."""

    inviter: str
    level: Level
    expires_at: str
    lamport: int
    redeemed: bool


class Floor(NamedTuple):
    """A retention floor: what came at or below it beyond these heads came too late."""

    lamport: int
    heads: Mapping[str, tuple[int, str]]
    state_digest: str
    position: Position

    def voids(self, event: Event) -> bool:
        """Whether an event came too late."""
        return (
            event.lamport <= self.lamport
            and event.author_seq is not None
            and self.voids_link(event.author, event.author_seq, event.digest)
        )

    def voids_link(self, author: str, seq: int, digest: bytes) -> bool:
        """Whether the event with this number came too late, if its lamport is not above."""
        last_seq, last_hash = self.heads.get(author, (0, ""))
        if seq == last_seq:
            return last_hash != "blake3:" + digest.hex()
        return seq > last_seq


class Outcome(NamedTuple):
    """What a membership event came to.

    Attributes:
        node: Whose level it changed; None when nobody's.
        level: To what.
        policy: The policy that it put into force.
    """

    verdict: Verdict
    node: str | None = None
    level: Level = Level.UNKNOWN
    policy: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before a pass begins and is never taken back."""

    revocations: tuple[Event, ...] = ()
    floors: tuple[Event, ...] = ()

    def digests(self) -> frozenset[bytes]:
        """The events that are known."""
        return frozenset(event.digest for event in (*self.revocations, *self.floors))


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


def signers(event: Event) -> frozenset[str]:
    """Everybody who signed what an event does: its author and its co-signers, each once."""
    return frozenset(
        (event.author, *(each["node_id"] for each in event.data.get("co_signers", ())))
    )


class Roster:
    """Who belongs; `take` is called with the membership events in total order.

    Attributes:
        cutoffs: Of everybody revoked, from the start where it is known beforehand.
        revoked: Of those whose revocation the pass has reached.
        holding: The revocations and floors that hold by themselves.
        seniority: Of each such revocation, where its earliest signer was admitted, and its id.
    """

    def __init__(self, community_id: str, chains: dict[str, Chain], known: Known) -> None:
        self.community_id = community_id
        self.name = ""
        self.created_at = ""
        self.policy: Mapping[str, Any] | None = None
        self.members: dict[str, Member] = {}
        self.invites: dict[tuple[str, str], Invite] = {}
        self.cutoffs: dict[str, Cutoff] = {}
        self.revoked: dict[str, Cutoff] = {}
        self.floors: list[Floor] = [floor_of(event) for event in known.floors]
        self.outcomes: dict[bytes, Outcome] = {}
        self.holding: set[bytes] = set()
        self.seniority: dict[bytes, tuple[Position, str]] = {}
        self._chains = chains
        self._known = known.digests()
        for event in known.revocations:
            self._cut(event)

    def level(self, node_id: str) -> Level:
        """How far a node is trusted at this point."""
        member = self.members.get(node_id)
        return Level.UNKNOWN if member is None else member.level

    def void(self, event: Event) -> Verdict | None:
        """Why a revocation or a floor takes an event away; None when none does."""
        cutoff = self.cutoffs.get(event.author)
        if cutoff is not None and cutoff.voids(event):
            return VERDICTS["revoked.cutoff"]
        if any(floor.voids(event) for floor in self.floors):
            return VERDICTS["floor"]
        return None

    def take(self, event: Event) -> None:
        """Judge the next event and let it take effect."""
        verdict = self.void(event) or self._of_chain(event)
        outcome = Outcome(verdict or ACCEPTED)
        if verdict is None or (verdict is _EQUIVOCATION and event.event_type != _JOINED):
            # Others relied on what an equivocator granted, and it could have granted as much
            # without forking: for others it stands, until a revocation takes it away.
            judged = self._judge(event)
            outcome = judged if verdict is None else judged._replace(verdict=verdict)
        if event.digest in self._known:
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
        if event.schema_version > KINDS[event.event_type].version:
            return _refused("schema.newer")
        if self.policy is None and event.event_type != "community.created":
            return _refused("community.missing")
        if event.author == self.community_id and event.event_type not in _BY_ROOT:
            return _refused("root.never")
        return _JUDGES[event.event_type](self, event)

    def _uphold(self, event: Event, outcome: Outcome) -> Outcome:
        """Let what is known take its effect, also where it would not hold by itself now."""
        if event.event_type == REVOKED and outcome.node is None:
            outcome = self._revoke(event)
        is_upheld = outcome.verdict is not _EQUIVOCATION
        return outcome._replace(verdict=ACCEPTED) if is_upheld else outcome

    def _created(self, event: Event) -> Outcome:
        first = event.author_seq == 1 and event.lamport == 0
        if self.policy is not None or event.author != self.community_id or not first:
            return _refused("community.founded")
        self.name = event.data["name"]
        self.created_at = event.wall_clock
        self.policy = event.data["policy"]
        founder = event.data["founder_node_id"]
        outcome = self._admit(founder, Level.ANCHOR, event, by=event.author)
        return outcome._replace(policy=self.policy)

    def _policy_updated(self, event: Event) -> Outcome:
        if event.author != self.community_id:
            return _refused("root.only")
        self.policy = event.data["policy"]
        return Outcome(ACCEPTED, policy=self.policy)

    def _invited(self, event: Event) -> Outcome:
        data = event.data
        invitee, level = data["invitee_node_id"], Level.parse(data["initial_level"])
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
        standing = self.invites.get(name)
        # Anybody may reuse an id; it takes nothing from the invite that bears it already.
        if standing is None or level > standing.level:
            self.invites[name] = Invite(
                event.author, level, data["expires_at"], event.lamport, redeemed=False
            )
        return Outcome(ACCEPTED)

    def _joined(self, event: Event) -> Outcome:
        data = event.data
        if event.author in self.revoked:
            return _refused("membership.revoked")
        if event.author in self.members:
            return _refused("membership.already")
        name = data["invite_event_id"], event.author
        invite = self.invites.get(name)
        if invite is None:
            return _refused("invite.missing")
        if event.lamport <= invite.lamport:
            return _refused("names.later")
        if parse_time(event.wall_clock) > parse_time(invite.expires_at):
            return _refused("invite.expired")
        manifest = data["node_manifest"]
        if (manifest["node_id"], manifest["community_id"]) != (event.author, self.community_id):
            return _refused("invite.manifest")
        self.invites[name] = invite._replace(redeemed=True)
        return self._admit(event.author, invite.level, event, by=invite.inviter)

    def _promoted(self, event: Event) -> Outcome:
        target, level = event.data["target_node_id"], Level.parse(event.data["new_level"])
        if event.author != self.community_id:
            if rule := self._unsigned(event, "min_signatures_to_promote", 1):
                return _refused(rule)
            if level > self.level(event.author):
                return _refused("membership.above")
        return self._move(target, level, level > self.level(target))

    def _demoted(self, event: Event) -> Outcome:
        target, level = event.data["target_node_id"], Level.parse(event.data["new_level"])
        if rule := self._unsigned(event, "min_signatures_to_demote", 3):
            return _refused(rule)
        return self._move(target, level, level < self.level(target))

    def _revoked(self, event: Event) -> Outcome:
        target = event.data["target_node_id"]
        if target not in self.members and target not in self.revoked:
            return _refused("membership.target")
        if rule := self._unsigned(event, "min_signatures_to_revoke", 3):
            return _refused(rule)
        counted = [self.members[each].since for each in signers(event) if each in self.members]
        self.holding.add(event.digest)
        self.seniority[event.digest] = min(counted), event.event_id
        return self._revoke(event)

    def _floored(self, event: Event) -> Outcome:
        if self.level(event.author) < Level.ANCHOR:
            return _refused("membership.level")
        floor = floor_of(event)
        before = (each.lamport for each in self.floors if each.position < event.position)
        if not max(before, default=-1) < floor.lamport < event.lamport:
            return _refused("floor.lamport")
        self.holding.add(event.digest)
        if floor not in self.floors:
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
        if known is None or (cutoff.last_seq, cutoff.position) < (known.last_seq, known.position):
            self.cutoffs[target] = cutoff

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
    return Outcome(VERDICTS[rule])


_JUDGES: Final[Mapping[str, Callable[[Roster, Event], Outcome]]] = {
    "community.created": Roster._created,  # noqa: SLF001
    "community.policy.updated": Roster._policy_updated,  # noqa: SLF001
    "community.member.invited": Roster._invited,  # noqa: SLF001
    "community.member.joined": Roster._joined,  # noqa: SLF001
    "community.member.promoted": Roster._promoted,  # noqa: SLF001
    "community.member.demoted": Roster._demoted,  # noqa: SLF001
    "community.member.revoked": Roster._revoked,  # noqa: SLF001
    "community.retention.floored": Roster._floored,  # noqa: SLF001
}
