"""Histories of a community from one seed: single acts, a busy honest one, and hostile ones.

A `HistoryWriter` keeps keys, chains and lamports, so that a test says who does what and nothing
else. `realistic` is what a busy community writes; `hostile` is a short history in which everything
happens that a member could try. Unsigned events have digests and chains, and no signature.
"""

import base64
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from blake3 import blake3

from accord.community.rules import Event, compose_event, event, formats, manifests
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
class HistoryAuthor:
    """Somebody who writes: a key, and where its chain has come to."""

    name: str
    id: str
    key: SigningKey | None
    seq: int = 0
    prev: str | None = None
    lamport: int = -1
    digests: list[str] = field(default_factory=list)

    def back(self, seq: int) -> "HistoryAuthor":
        """The same author as if it had stopped there: what it writes now forks its chain."""
        prev = self.digests[seq - 1] if seq else None
        return HistoryAuthor(
            self.name, self.id, self.key, seq, prev, self.lamport, self.digests[:seq]
        )


class HistoryWriter:
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
        self._pens: dict[str, HistoryAuthor] = {}
        self._numbers = itertools.count(1)
        self.root = self.pen("root")

    @property
    def community_id(self) -> str:
        """Whose log it is."""
        return self.root.id

    def pen(self, name: str) -> HistoryAuthor:
        """The author of that name, always the same one."""
        if name not in self._pens:
            secret = blake3(f"{self._seed}/{name}".encode()).digest()
            key = SigningKey.from_seed(secret) if self._signed else None
            fake = "ed25519:" + base64.urlsafe_b64encode(secret).decode().rstrip("=")
            self._pens[name] = HistoryAuthor(name, fake if key is None else key.id, key)
        return self._pens[name]

    def write(
        self,
        pen: HistoryAuthor,
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
        if pen.key is not None and chained and version == 1 and event_type in formats.EVENT_TYPES:
            event = compose_event(
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

    def found(self, founder: HistoryAuthor, policy: Mapping[str, Any] | None = None) -> Event:
        """The founding event."""
        data = {
            "name": "Elm Street",
            "founder_node_id": founder.id,
            "policy": {**POLICY, **(policy or {})},
        }
        return self.write(self.root, "community.created", data)

    def invite(
        self, pen: HistoryAuthor, invitee: HistoryAuthor, level: str = "member", **options: Any
    ) -> Event:
        """An invite that lasts a year."""
        data = {
            "invitee_node_id": invitee.id,
            "initial_level": level,
            "expires_at": format_time(START + 365 * 86_400),
        }
        return self._agreed(pen, "community.member.invited", data, **options)

    def guard(self, pen: HistoryAuthor, **options: Any) -> Event:
        """From here on, somebody's invites need a witness."""
        return self.write(pen, "community.invites.guarded", {}, **options)

    def witness(self, pen: HistoryAuthor, invite: Event, **options: Any) -> Event:
        """Somebody has seen the holder of an invite."""
        data = {
            "invite_event_id": invite.event_id,
            "invitee_node_id": invite.data["invitee_node_id"],
        }
        return self.write(pen, "community.invite.witnessed", data, **options)

    def join(self, pen: HistoryAuthor, invite: Event, **options: Any) -> Event:
        """The redemption of an invite."""
        data = {"invite_event_id": invite.event_id, "node_manifest": self.manifest(pen)}
        return self.write(pen, "community.member.joined", data, **options)

    def withdraw(self, pen: HistoryAuthor, invite: Event, **options: Any) -> Event:
        """Take back an invite."""
        data = {
            "invite_event_id": invite.event_id,
            "invitee_node_id": invite.data["invitee_node_id"],
        }
        return self.write(pen, "community.invite.withdrawn", data, **options)

    def admit(self, pen: HistoryAuthor, newcomer: HistoryAuthor, level: str = "member") -> Event:
        """Invite somebody, who joins."""
        return self.join(newcomer, self.invite(pen, newcomer, level))

    def level(
        self, pen: HistoryAuthor, what: str, target: HistoryAuthor, level: str, **options: Any
    ) -> Event:
        """A promotion or a demotion (`what` is `promoted` or `demoted`)."""
        data = {"target_node_id": target.id, "new_level": level}
        return self._agreed(pen, f"community.member.{what}", data, **options)

    def revoke(
        self,
        pen: HistoryAuthor,
        target: HistoryAuthor,
        *signers: HistoryAuthor,
        last_seq: int | None = None,
        **options: Any,
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
        self,
        pen: HistoryAuthor,
        lamport: int,
        heads: Iterable[tuple[HistoryAuthor, int]],
        **options: Any,
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

    def heads(self, lamport: int) -> list[tuple[HistoryAuthor, int]]:
        """How far everybody had come at a lamport, as far as they wrote in order."""
        return [
            (pen, max((e.author_seq or 0 for e in self.events
                       if e.author == pen.id and e.lamport <= lamport), default=0))
            for pen in self._pens.values()
        ]  # fmt: skip

    def post(self, pen: HistoryAuthor, client_id: str | None = None, **options: Any) -> Event:
        """A post on the market."""
        data = {
            "client_id": client_id or f"post-{next(self._numbers)}",
            "category": "offer",
            "title": "Ladder",
            "body": "Three metres.",
        }
        return self.write(pen, "market.post.created", data, **options)

    def say(self, pen: HistoryAuthor, recipient: HistoryAuthor, **options: Any) -> Event:
        """A chat message."""
        client_id = f"chat-{next(self._numbers)}"
        data = {"client_id": client_id, "recipient": recipient.id, "body": "Good morning."}
        return self.write(pen, "chat.message.sent", data, **options)

    def manifest(self, pen: HistoryAuthor, *extensions: str) -> dict[str, Any]:
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
        pen: HistoryAuthor,
        event_type: str,
        data: dict[str, Any],
        *,
        signers: tuple[HistoryAuthor, ...] = (),
        **options: Any,
    ) -> Event:
        if signers:
            bare = {name: value for name, value in data.items() if name != "co_signers"}
            data = {
                **bare,
                "co_signers": [self._co_sign(each, event_type, bare) for each in signers],
            }
        return self.write(pen, event_type, data, **options)

    def _co_sign(
        self, pen: HistoryAuthor, event_type: str, data: Mapping[str, Any]
    ) -> dict[str, str]:
        if pen.key is None:
            return {"node_id": pen.id, "signature": _NO_SIGNATURE}
        return event.co_sign(pen.key, self.community_id, event_type, data)


def ulid(number: int) -> str:
    """A ULID that is told from others by a number."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 32)
        digits = _ALPHABET[digit] + digits
    return "01KDY" + digits.rjust(21, "0")


MEMBERS: Final = 7


class Hostile:
    """Writes one event after the other, most of them bad.

    Args:
        chance: Decides everything.
        signed: Whether events are really signed.
    """

    def __init__(self, chance: random.Random, *, signed: bool = False) -> None:
        self.chance = chance
        self.scribe = HistoryWriter(chance.getrandbits(32), signed=signed)
        self.withheld: list[Event] = []
        scribe = self.scribe
        self.pens = [scribe.pen(f"member {number}") for number in range(MEMBERS)]
        policy = {
            "min_signatures_to_revoke": chance.choice([1, 2, 2, 3]),
            "min_signatures_to_demote": chance.choice([1, 2]),
            "unchained_events": chance.random() < 0.2,
        }
        scribe.found(self.pens[0], policy)
        for newcomer in self.pens[1:5]:
            invite = scribe.invite(self.pens[0], newcomer, chance.choice(["member", "trusted"]))
            scribe.join(newcomer, invite)

    def write(self) -> Event:
        """The next event."""
        pen = self._pick()
        if self.chance.random() < 0.02 and pen.seq > 1:
            pen = pen.back(self.chance.randrange(1, pen.seq))
        tries = self.chance.choices(_TRIES, _WEIGHTS)[0]
        event = tries(self, pen)
        if self.chance.random() < 0.02:
            self.withheld.append(event)
        return event

    def _pick(self) -> HistoryAuthor:
        return self.chance.choice(self.pens)

    def _lamport(self, pen: HistoryAuthor) -> int | None:
        turn = self.chance.random()
        if turn < 0.6:
            return None
        if turn < 0.75:
            return pen.lamport + 1
        if turn < 0.96:
            return self.chance.randint(pen.lamport + 1, max(pen.lamport, self.scribe.lamport) + 1)
        if turn < 0.98:
            return self.chance.randint(0, self.scribe.lamport)
        return self.scribe.lamport + self.chance.choice([999_999, 1_000_001, 2_000_001])

    def _event_id(self) -> str | None:
        known = self.scribe.events
        return self.chance.choice(known).event_id if self.chance.random() < 0.1 else None

    def _named(self, *kinds: str) -> str:
        found = [event.event_id for event in self.scribe.events if event.event_type in kinds]
        return self.chance.choice(found or [self.scribe.events[0].event_id])

    def _signers(self) -> tuple[HistoryAuthor, ...]:
        return tuple(self.chance.choices(self.pens, k=self.chance.randint(0, 3)))

    def _post(self, pen: HistoryAuthor) -> Event:
        return self.scribe.post(
            pen,
            self.chance.choice([None, "again"]),
            lamport=self._lamport(pen),
            event_id=self._event_id(),
            chained=self.chance.random() > 0.1,
        )

    def _change(self, pen: HistoryAuthor) -> Event:
        data = {"client_id": "c", "target_event_id": self._named("market.post.created")}
        if self.chance.random() < 0.5:
            updated = {**data, "fields": {"title": f"Saw {len(self.scribe.events)}"}}
            return self.scribe.write(pen, "market.post.updated", updated)
        reason = self.chance.choice(["withdrawn", "user_request"])
        return self.scribe.write(pen, "market.post.expired", {**data, "reason": reason})

    def _say(self, pen: HistoryAuthor) -> Event:
        lamport, event_id = self._lamport(pen), self._event_id()
        return self.scribe.say(pen, self._pick(), lamport=lamport, event_id=event_id)

    def _receive(self, pen: HistoryAuthor) -> Event:
        data = {
            "target_event_id": self._named("chat.message.sent"),
            "delivered_at": "2026-01-01T00:00:00Z",
        }
        return self.scribe.write(pen, "chat.message.delivered", data, lamport=self._lamport(pen))

    def _file(self, pen: HistoryAuthor) -> Event:
        cid = "blake3:" + str(self.chance.randint(0, 3)) * 64
        if self.chance.random() < 0.5:
            return self.scribe.write(pen, "file.cid.unpinned", {"cid": cid})
        data = {"cid": cid, "sizes_bytes": 7}
        return self.scribe.write(pen, "file.cid.advertised", data, lamport=self._lamport(pen))

    def _ingest(self, pen: HistoryAuthor) -> Event:
        cid = "blake3:" + str(self.chance.randint(0, 1)) * 64
        data = {"corpus": "rules", "doc_cid": cid, "chunks": 1}
        return self.scribe.write(pen, "rag.document.ingested", data, lamport=self._lamport(pen))

    def _describe(self, pen: HistoryAuthor) -> Event:
        manifest = self.scribe.manifest(pen, self.chance.choice(["to", "seals"]))
        return self.scribe.write(pen, "node.manifest.updated", {"manifest": manifest})

    def _invite(self, pen: HistoryAuthor) -> Event:
        level = self.chance.choice(["member", "trusted", "anchor"])
        return self.scribe.invite(
            pen, self._pick(), level, lamport=self._lamport(pen), event_id=self._event_id()
        )

    def _join(self, pen: HistoryAuthor) -> Event:
        invites = [
            event
            for event in self.scribe.events
            if event.event_type == "community.member.invited"
            and event.data.get("invitee_node_id") == pen.id
        ]
        if not invites:
            return self.scribe.join(pen, self.scribe.events[0])
        late = START + self.chance.choice([0, 0, 400 * 86_400])
        invite = self.chance.choice(invites)
        return self.scribe.join(pen, invite, lamport=self._lamport(pen), at=late)

    def _withdraw(self, pen: HistoryAuthor) -> Event:
        invites = [
            event
            for event in self.scribe.events
            if event.event_type == "community.member.invited" and event.data
        ]
        if not invites:
            return self.scribe.write(pen, "community.member.left", {})
        invite = self.chance.choice(invites)
        return self.scribe.withdraw(pen, invite, lamport=self._lamport(pen))

    def _leave(self, pen: HistoryAuthor) -> Event:
        return self.scribe.write(pen, "community.member.left", {}, lamport=self._lamport(pen))

    def _guard(self, pen: HistoryAuthor) -> Event:
        return self.scribe.guard(pen, lamport=self._lamport(pen))

    def _witness(self, pen: HistoryAuthor) -> Event:
        invites = [
            event
            for event in self.scribe.events
            if event.event_type == "community.member.invited" and event.schema_version == 1
        ]
        late = START + self.chance.choice([0, 0, 400 * 86_400])
        invite = self.chance.choice(invites)
        return self.scribe.witness(pen, invite, lamport=self._lamport(pen), at=late)

    def _level(self, pen: HistoryAuthor) -> Event:
        what, level = self.chance.choice(
            [
                ("promoted", "trusted"),
                ("promoted", "anchor"),
                ("demoted", "member"),
                ("demoted", "trusted"),
            ]
        )
        author = self.scribe.root if self.chance.random() < 0.1 else pen
        target, lamport, signers = self._pick(), self._lamport(author), self._signers()
        return self.scribe.level(author, what, target, level, lamport=lamport, signers=signers)

    def _revoke(self, pen: HistoryAuthor) -> Event:
        target = self._pick()
        last = self.chance.choice([None, self.chance.randint(0, target.seq)])
        return self.scribe.revoke(
            pen, target, *self._signers(), last_seq=last, lamport=self._lamport(pen)
        )

    def _floor(self, pen: HistoryAuthor) -> Event:
        below = self.chance.randint(0, max(0, min(self.scribe.lamport, 1000)))
        heads = [
            (each, seq if self.chance.random() < 0.9 else seq // 2)
            for each, seq in self.scribe.heads(below)
        ]
        return self.scribe.floor(self.chance.choice([pen, self.pens[0]]), below, heads)

    def _policy(self, pen: HistoryAuthor) -> Event:
        policy = {
            **self.scribe.events[0].data["policy"],
            "min_signatures_to_revoke": self.chance.randint(1, 3),
            "unchained_events": self.chance.random() < 0.3,
        }
        author = self.chance.choice([pen, self.scribe.root])
        return self.scribe.write(author, "community.policy.updated", {"policy": policy})

    def _strange(self, pen: HistoryAuthor) -> Event:
        kind, version = self.chance.choice(
            [
                ("federation.link.made", 1),
                ("chat.group.made", 1),
                ("weather.report.made", 1),
                ("market.post.created", 2),
                ("community.member.revoked", 2),
                ("community.member.invited", 2),
                ("community.retention.floored", 9),
            ]
        )
        return self.scribe.write(pen, kind, {}, version=version)

    def _root(self, pen: HistoryAuthor) -> Event:
        if self.chance.random() < 0.5:
            return self.scribe.post(self.scribe.root)
        return self.scribe.found(pen)


_Try = Callable[[Hostile, HistoryAuthor], Event]

_WEIGHED: Final[dict[str, int]] = {
    "_post": 12, "_change": 5, "_say": 6, "_receive": 4, "_file": 4, "_ingest": 2, "_describe": 2,
    "_invite": 7, "_join": 7, "_level": 8, "_revoke": 9, "_floor": 3, "_policy": 2, "_strange": 2,
    "_root": 1, "_withdraw": 4, "_leave": 1, "_guard": 2, "_witness": 4,
}  # fmt: skip
_TRIES: Final[list[_Try]] = [getattr(Hostile, name) for name in _WEIGHED]
_WEIGHTS: Final = list(_WEIGHED.values())


def hostile(chance: random.Random, size: int, *, signed: bool = False) -> tuple[str, list[Event]]:
    """A hostile history: the community's id, and its events in the order of their writing.

    Some events are missing, so that chains have gaps.
    """
    writer = Hostile(chance, signed=signed)
    for _ in range(size):
        writer.write()
    missing = {event.digest for event in writer.withheld}
    events = [event for event in writer.scribe.events if event.digest not in missing]
    return writer.scribe.community_id, events


def realistic(
    count: int, *, seed: int = 0, members: int = 200, signed: bool = False
) -> tuple[str, Iterator[Event]]:
    """An honest history of a busy community: its id, and its events in total order."""
    scribe = HistoryWriter(seed, signed=signed)
    return scribe.community_id, itertools.islice(_realistic(scribe, seed, members), count)


def _realistic(scribe: HistoryWriter, seed: int, members: int) -> Iterator[Event]:
    chance = random.Random(seed)
    founder = scribe.pen("founder")
    scribe.found(founder)
    everyone, trusted = [founder], [founder]
    scribe.write(founder, "node.manifest.updated", {"manifest": scribe.manifest(founder)})
    posts: list[tuple[HistoryAuthor, Event]] = []
    messages: list[tuple[HistoryAuthor, Event]] = []
    files: list[tuple[HistoryAuthor, str]] = []
    yield from _taken(scribe)
    for number in itertools.count():
        pen = chance.choice(everyone)
        turn = chance.random()
        name = blake3(b"%d" % number).hexdigest()
        if len(everyone) < members and chance.random() < 0.02:
            newcomer = scribe.pen(f"member {len(everyone)}")
            scribe.admit(pen, newcomer)
            everyone.append(newcomer)
            if len(trusted) * 10 < len(everyone):
                scribe.level(founder, "promoted", newcomer, "trusted")
                trusted.append(newcomer)
        elif turn < 0.34 or len(everyone) < 2:
            posts.append((pen, scribe.post(pen)))
        elif turn < 0.44 and posts:
            writer, post = posts[chance.randrange(len(posts))]
            data = {"client_id": name[:16], "target_event_id": post.event_id}
            scribe.write(writer, "market.post.updated", {**data, "fields": {"title": "Saw"}})
        elif turn < 0.49 and posts:
            writer, post = posts.pop(chance.randrange(len(posts)))
            data = {"client_id": name[:16], "target_event_id": post.event_id}
            scribe.write(writer, "market.post.expired", {**data, "reason": "fulfilled"})
        elif turn < 0.74:
            recipient = chance.choice([each for each in everyone[:50] if each is not pen])
            messages.append((recipient, scribe.say(pen, recipient)))
        elif turn < 0.86 and messages:
            reader, message = messages.pop(0 if chance.random() < 0.5 else -1)
            data = {"target_event_id": message.event_id, "delivered_at": message.wall_clock}
            scribe.write(reader, "chat.message.delivered", data)
        elif turn < 0.95:
            files.append((pen, f"blake3:{name}"))
            advertised = {"cid": files[-1][1], "sizes_bytes": number}
            scribe.write(pen, "file.cid.advertised", advertised)
        elif turn < 0.97 and files:
            holder, cid = files.pop()
            scribe.write(holder, "file.cid.unpinned", {"cid": cid})
        elif turn < 0.99:
            ingested = {"corpus": "house-rules", "doc_cid": f"blake3:{name}", "chunks": 12}
            scribe.write(chance.choice(trusted), "rag.document.ingested", ingested)
        else:
            scribe.write(pen, "node.manifest.updated", {"manifest": scribe.manifest(pen, "to")})
        del messages[:-1000]
        yield from _taken(scribe)


def _taken(scribe: HistoryWriter) -> list[Event]:
    taken, scribe.events = scribe.events, []
    return taken
