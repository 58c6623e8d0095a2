"""Signed events of one generated community: authors, their chains, the lamport times.

Nothing is validated, so that faulty events can be written too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from blake3 import blake3

from accord.community.rules import event, formats, manifests
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource
from accord.pipeline.generate.arrivals import RecordDraft

START: Final = 1_767_225_600.0
YEAR: Final = 365 * 86_400.0
REVOKED: Final = "community.member.revoked"


@dataclass(slots=True, eq=False)
class HistoryClock:
    """A clock that is set by hand."""

    time: float = START

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return self.time

    def monotonic(self) -> float:
        """The same time."""
        return self.time


@dataclass(slots=True, eq=False)
class Author:
    """An author; `prev` and `before` are the hashes of its last two events."""

    name: str
    key: SigningKey
    lamport: int = -1
    seq: int = 0
    prev: str | None = None
    before: str | None = None
    gone: bool = False

    @property
    def id(self) -> str:
        """Its node id."""
        return self.key.id


@dataclass(frozen=True, slots=True)
class SignedEvent:
    """An event that was written."""

    members: Mapping[str, Any]
    digest: str
    body: str
    at: int

    @property
    def event_id(self) -> str:
        """The id of the event."""
        return str(self.members["event_id"])

    @property
    def lamport(self) -> int:
        """Its lamport."""
        return int(self.members["lamport"])

    def draft(self, kind: str | None = None) -> RecordDraft:
        """Its record, with the id that a node's log gives it."""
        return RecordDraft(f"{self.event_id}:{self.digest}", self.at, self.body, kind, self.digest)


def derive_key(seed: int, *names: str) -> SigningKey:
    """A key derived from a seed and names."""
    return SigningKey.from_seed(blake3("/".join((str(seed), *names)).encode()).digest())


class EventWriter:
    """Writes the events of one community; keys derive from the seed.

    Attributes:
        lamport: The greatest so far, without explicitly given ones.
    """

    def __init__(self, seed: int, name: str, chance: Random) -> None:
        self.name = name
        self.clock = HistoryClock()
        self.lamport = -1
        self._seed = seed
        self._chance = chance
        self._ids = UlidSource(self.clock, lambda: chance.getrandbits(80))
        self.root = self.author("root")

    @property
    def community_id(self) -> str:
        """The id of the community."""
        return self.root.id

    def author(self, name: str) -> Author:
        """A new author; the same name gives the same key."""
        return Author(name, derive_key(self._seed, self.name, name))

    def write(
        self,
        author: Author,
        event_type: str,
        data: Mapping[str, Any],
        *,
        lamport: int | None = None,
        version: int = 1,
    ) -> SignedEvent:
        """Write the next event of an author; its lamport is above all others unless given."""
        signed = self.sign(author, event_type, data, lamport=lamport, version=version)
        self.keep(author, signed)
        return signed

    def sign(
        self,
        author: Author,
        event_type: str,
        data: Mapping[str, Any],
        *,
        lamport: int | None = None,
        version: int = 1,
        by: SigningKey | None = None,
        wrong: Mapping[str, Any] | None = None,
    ) -> SignedEvent:
        """Sign an event without adding it to its author's chain.

        Args:
            lamport: By default one above all others.
            by: Who signs it instead of the author.
            wrong: Members to overwrite with wrong values.
        """
        self.clock.time += self._chance.randrange(1, 90)
        if lamport is None:
            self.lamport += 1
            lamport = self.lamport
        members = {
            "schema_version": version,
            "event_id": self._ids.new(),
            "lamport": lamport,
            "wall_clock": format_time(self.clock.time),
            "community_id": self.community_id,
            "author": author.id,
            "author_seq": author.seq + 1,
            "prev": author.prev,
            "event_type": event_type,
            "data": data,
            **(wrong or {}),
        }
        message = canonical.encode(members)
        return self.sealed(members, message, (by or author.key).sign_bytes(message))

    def sealed(self, members: Mapping[str, Any], message: bytes, signature: bytes) -> SignedEvent:
        """An event with a signature, valid or not."""
        whole = {**members, "signature": formats.write_signature(signature)}
        at = int(self.clock.time * 1000)
        return SignedEvent(
            members, blake3(message).hexdigest(), canonical.encode(whole).decode(), at
        )

    def keep(self, author: Author, signed: SignedEvent) -> None:
        """Make an event the last of its author's chain."""
        author.before, author.prev = author.prev, f"blake3:{signed.digest}"
        author.seq, author.lamport = author.seq + 1, signed.lamport

    def invited(self, inviter: Author, invitee: str, level: str = "member") -> SignedEvent:
        """An invite that is valid for a year."""
        expires = format_time(self.clock.time + YEAR)
        data = {"invitee_node_id": invitee, "initial_level": level, "expires_at": expires}
        return self.write(inviter, "community.member.invited", data)

    def joined(self, author: Author, invite_event_id: str) -> SignedEvent:
        """The redemption of an invite."""
        data = {"invite_event_id": invite_event_id, "node_manifest": self.manifest(author)}
        return self.write(author, "community.member.joined", data)

    def revocation(
        self, target: Author, signers: Iterable[Author], *, but_the_last: bool = False
    ) -> dict[str, Any]:
        """The data of a co-signed revocation; all events so far stay valid, or all but the last."""
        data = {
            "client_id": f"revoke-{self._chance.getrandbits(48):012x}",
            "target_node_id": target.id,
            "reason": "compromised",
            "target_last_seq": target.seq - 1 if but_the_last else target.seq,
            "target_last_hash": target.before if but_the_last else target.prev,
        }
        return {
            **data,
            "co_signers": [
                event.co_sign(each.key, self.community_id, REVOKED, data) for each in signers
            ],
        }

    def manifest(self, author: Author, *extensions: str) -> dict[str, Any]:
        """The manifest of a node."""
        host = f"{author.name.replace(' ', '-')}.local"
        about = {
            "display_name": author.name,
            "community_id": self.community_id,
            "profile": "hearth",
            "endpoints": [{"transport": "https", "host": host, "port": 7080}],
            "capabilities": [],
            "extensions": list(extensions),
        }
        return manifests.sign_node(author.key, about, now=self.clock.time)
