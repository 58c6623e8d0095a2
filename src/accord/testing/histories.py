"""Histories of a community: what members wrote, honest or not, from one seed.

A `Scribe` keeps keys, chains and lamports, so that a test says who does what and nothing else.
`accord.testing.chronicles` writes whole histories with it. Unsigned events have digests and
signatures that prove nothing and cost little; whatever reads events without verifying them cannot
tell.
"""

import base64
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from blake3 import blake3

from accord.community.envelope import Event, compose, intents, kinds, manifests
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey

START: Final = 1_767_225_600.0
POLICY: Final[Mapping[str, Any]] = {
    "min_signatures_to_invite": 1,
    "min_signatures_to_demote": 3,
    "min_signatures_to_revoke": 3,
    "capability_token_ttl_seconds": 3600,
    "federation_enabled": False,
    "default_member_can_invite": True,
}
"""A policy with the defaults of the specification."""

_NO_SIGNATURE: Final = "ed25519:" + "A" * 86
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(slots=True)
class Pen:
    """Somebody who writes: a key, and where its chain has come to."""

    name: str
    id: str
    key: SigningKey | None
    seq: int = 0
    prev: str | None = None
    lamport: int = -1
    digests: list[str] = field(default_factory=list)

    def back(self, seq: int) -> "Pen":
        """The same author as if it had stopped there: what it writes now forks its chain."""
        prev = self.digests[seq - 1] if seq else None
        return Pen(self.name, self.id, self.key, seq, prev, self.lamport, self.digests[:seq])


class Scribe:
    """Writes the events of one community.

    Args:
        seed: Tells keys, ids and digests of different scribes apart.
        signed: Whether events are really signed.
    """

    def __init__(self, seed: object = 0, *, signed: bool = False) -> None:
        self.events: list[Event] = []
        self.lamport = -1
        self._seed = seed
        self._signed = signed
        self._pens: dict[str, Pen] = {}
        self._numbers = itertools.count(1)
        self.root = self.pen("root")

    @property
    def community_id(self) -> str:
        """Whose log it is."""
        return self.root.id

    def pen(self, name: str) -> Pen:
        """The author of that name, always the same one."""
        if name not in self._pens:
            secret = blake3(f"{self._seed}/{name}".encode()).digest()
            key = SigningKey.from_seed(secret) if self._signed else None
            fake = "ed25519:" + base64.urlsafe_b64encode(secret).decode().rstrip("=")
            self._pens[name] = Pen(name, fake if key is None else key.id, key)
        return self._pens[name]

    def write(
        self,
        pen: Pen,
        event_type: str,
        data: Mapping[str, Any],
        *,
        lamport: int | None = None,
        event_id: str | None = None,
        at: float | None = None,
        chained: bool = True,
        version: int = 1,
        community_id: str | None = None,
    ) -> Event:
        """Write the next event of an author; its lamport is above all others unless given."""
        number = next(self._numbers)
        lamport = self.lamport + 1 if lamport is None else lamport
        event_id = event_id or ulid(number)
        clock = format_time(START + number if at is None else at)
        seq = pen.seq + 1 if chained else None
        prev = pen.prev if chained else None
        where = community_id or self.community_id
        if pen.key is not None and chained and version == 1 and event_type in kinds.KINDS:
            event = compose(
                pen.key,
                event_type,
                data,
                event_id=event_id,
                lamport=lamport,
                wall_clock=clock,
                community_id=where,
                author_seq=pen.seq + 1,
                prev=prev,
            )
        else:
            name = f"{self._seed}/{number}/{pen.id}/{event_type}".encode()
            event = Event(
                blake3(name).digest(), version, event_id, lamport, clock, where, pen.id,
                seq, prev, event_type, data, _NO_SIGNATURE,
            )  # fmt: skip
        if chained:
            pen.seq, pen.prev, pen.lamport = pen.seq + 1, event.hash, lamport
            pen.digests.append(event.hash)
        self.lamport = max(self.lamport, lamport)
        self.events.append(event)
        return event

    def found(self, founder: Pen, policy: Mapping[str, Any] | None = None) -> Event:
        """The founding event."""
        data = {
            "name": "Elm Street",
            "founder_node_id": founder.id,
            "policy": {**POLICY, **(policy or {})},
        }
        return self.write(self.root, "community.created", data)

    def invite(self, pen: Pen, invitee: Pen, level: str = "member", **options: Any) -> Event:
        """An invite that lasts a year."""
        data = {
            "invitee_node_id": invitee.id,
            "initial_level": level,
            "expires_at": format_time(START + 365 * 86_400),
        }
        return self._agreed(pen, "community.member.invited", data, **options)

    def join(self, pen: Pen, invite: Event, **options: Any) -> Event:
        """The redemption of an invite."""
        data = {"invite_event_id": invite.event_id, "node_manifest": self.manifest(pen)}
        return self.write(pen, "community.member.joined", data, **options)

    def admit(self, pen: Pen, newcomer: Pen, level: str = "member") -> Event:
        """Invite somebody, who joins."""
        return self.join(newcomer, self.invite(pen, newcomer, level))

    def level(self, pen: Pen, what: str, target: Pen, level: str, **options: Any) -> Event:
        """A promotion or a demotion (`what` is `promoted` or `demoted`)."""
        data = {"target_node_id": target.id, "new_level": level}
        return self._agreed(pen, f"community.member.{what}", data, **options)

    def revoke(
        self, pen: Pen, target: Pen, *signers: Pen, last_seq: int | None = None, **options: Any
    ) -> Event:
        """A revocation, with the target's last event that counts; by default its last."""
        seq = target.seq if last_seq is None else last_seq
        data = {
            "client_id": f"revoke-{next(self._numbers)}",
            "target_node_id": target.id,
            "reason": "compromised",
            "target_last_seq": seq,
            "target_last_hash": target.digests[seq - 1] if 0 < seq <= target.seq else None,
            "co_signers": [],
        }
        return self._agreed(pen, "community.member.revoked", data, signers=signers, **options)

    def floor(
        self, pen: Pen, lamport: int, heads: Iterable[tuple[Pen, int]], **options: Any
    ) -> Event:
        """A retention floor; `heads` are pairs of a pen and the number of its last event."""
        data = {
            "lamport": lamport,
            "heads": [
                {"author": each.id, "author_seq": seq, "hash": each.digests[seq - 1]}
                for each, seq in heads
                if seq
            ],
            "state_digest": "blake3:" + "0" * 64,
        }
        return self.write(pen, "community.retention.floored", data, **options)

    def heads(self, lamport: int) -> list[tuple[Pen, int]]:
        """How far everybody had come at a lamport, as far as they wrote in order."""
        return [
            (pen, max((e.author_seq or 0 for e in self.events
                       if e.author == pen.id and e.lamport <= lamport), default=0))
            for pen in self._pens.values()
        ]  # fmt: skip

    def post(self, pen: Pen, client_id: str | None = None, **options: Any) -> Event:
        """A post on the market."""
        data = {
            "client_id": client_id or f"post-{next(self._numbers)}",
            "category": "offer",
            "title": "Ladder",
            "body": "Three metres.",
        }
        return self.write(pen, "market.post.created", data, **options)

    def say(self, pen: Pen, recipient: Pen, **options: Any) -> Event:
        """A chat message."""
        client_id = f"chat-{next(self._numbers)}"
        data = {"client_id": client_id, "recipient": recipient.id, "body": "Good morning."}
        return self.write(pen, "chat.message.sent", data, **options)

    def manifest(self, pen: Pen, *extensions: str) -> dict[str, Any]:
        """What a node says of itself."""
        about = {
            "display_name": pen.name,
            "community_id": self.community_id,
            "profile": "hearth",
            "endpoints": [],
            "capabilities": [],
            "extensions": list(extensions),
        }
        if pen.key is not None:
            return manifests.sign_node(pen.key, about, now=START)
        return {**about, "node_id": pen.id}

    def _agreed(
        self,
        pen: Pen,
        event_type: str,
        data: dict[str, Any],
        *,
        signers: tuple[Pen, ...] = (),
        **options: Any,
    ) -> Event:
        if signers:
            bare = {name: value for name, value in data.items() if name != "co_signers"}
            data = {
                **bare,
                "co_signers": [self._co_sign(each, event_type, bare) for each in signers],
            }
        return self.write(pen, event_type, data, **options)

    def _co_sign(self, pen: Pen, event_type: str, data: Mapping[str, Any]) -> dict[str, str]:
        if pen.key is None:
            return {"node_id": pen.id, "signature": _NO_SIGNATURE}
        return intents.co_sign(pen.key, self.community_id, event_type, data)


def ulid(number: int) -> str:
    """A ULID that is told from others by a number."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 32)
        digits = _ALPHABET[digit] + digits
    return "01KDY" + digits.rjust(21, "0")
