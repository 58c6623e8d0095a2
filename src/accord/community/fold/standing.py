"""The words of membership: members, invites, cutoffs, floors, and what an event came to.

Immutable values and how they are read from events; `roster` decides about them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from accord.community.envelope import Event, Position
from accord.community.envelope.names import Level
from accord.community.fold.verdicts import Verdict


class Member(NamedTuple):
    """Somebody who belongs; `since` is where in the log it was admitted."""

    level: Level
    added_at: str
    added_by: str
    since: Position


class Invite(NamedTuple):
    """A standing invite."""

    inviter: str
    level: Level
    expires_at: str
    lamport: int
    redeemed: bool


class Cutoff(NamedTuple):
    """Where revocations end what their target could say.

    Attributes:
        last_seq: The last event that counts, by the revocation that leaves the least.
        last_hash: Its hash, which names the branch.
        position: The first revocation's place, from which on nothing unchained counts.
        revoked_at: When that was.
    """

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

    def also(self, other: "Cutoff") -> "Cutoff":
        """Both cutoffs in one."""
        least = min(self, other, key=lambda each: (each.last_seq, each.last_hash or ""))
        first = min(self, other, key=lambda each: each.position)
        return Cutoff(least.last_seq, least.last_hash, first.position, first.revoked_at)


class Floor(NamedTuple):
    """A retention floor: content that came at or below it beyond these heads came too late."""

    lamport: int
    heads: Mapping[str, tuple[int, str]]
    state_digest: str
    position: Position

    def voids(self, event: Event) -> bool:
        """Whether an event came too late."""
        return event.lamport <= self.lamport and not self.covers(
            event.author, event.author_seq, event.digest
        )

    def covers(self, author: str, seq: int | None, digest: bytes) -> bool:
        """Whether the floor's heads reach as far as an event.

        No unchained event stands below a floor, so there is nothing to take away.
        """
        last_seq, last_hash = self.heads.get(author, (0, ""))
        if seq == last_seq:
            return last_hash == "blake3:" + digest.hex()
        return seq is None or seq < last_seq


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
