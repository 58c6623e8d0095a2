"""Whole histories of a community, from one seed: an honest one, and hostile ones.

`realistic` is what a busy community writes, as long as wanted. `hostile` is a short history in
which everything happens that a member could try: forks, gaps, backdated lamports, revocations
against revocations, floors that leave heads out, lamports that jump, ids that were used before.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Final

from blake3 import blake3

from accord.community.envelope import Event
from accord.testing.histories import START, Pen, Scribe

MEMBERS: Final = 7


class Hostile:
    """Writes one event after the other, most of them bad.

    Args:
        chance: Decides everything.
        signed: Whether events are really signed.
    """

    def __init__(self, chance: random.Random, *, signed: bool = False) -> None:
        self.chance = chance
        self.scribe = Scribe(chance.getrandbits(32), signed=signed)
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

    def _pick(self) -> Pen:
        return self.chance.choice(self.pens)

    def _lamport(self, pen: Pen) -> int | None:
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

    def _signers(self) -> tuple[Pen, ...]:
        return tuple(self.chance.choices(self.pens, k=self.chance.randint(0, 3)))

    def _post(self, pen: Pen) -> Event:
        return self.scribe.post(
            pen,
            self.chance.choice([None, "again"]),
            lamport=self._lamport(pen),
            event_id=self._event_id(),
            chained=self.chance.random() > 0.1,
        )

    def _change(self, pen: Pen) -> Event:
        data = {"client_id": "c", "target_event_id": self._named("market.post.created")}
        if self.chance.random() < 0.5:
            updated = {**data, "fields": {"title": f"Saw {len(self.scribe.events)}"}}
            return self.scribe.write(pen, "market.post.updated", updated)
        reason = self.chance.choice(["withdrawn", "user_request"])
        return self.scribe.write(pen, "market.post.expired", {**data, "reason": reason})

    def _say(self, pen: Pen) -> Event:
        lamport, event_id = self._lamport(pen), self._event_id()
        return self.scribe.say(pen, self._pick(), lamport=lamport, event_id=event_id)

    def _receive(self, pen: Pen) -> Event:
        data = {
            "target_event_id": self._named("chat.message.sent"),
            "delivered_at": "2026-01-01T00:00:00Z",
        }
        return self.scribe.write(pen, "chat.message.delivered", data, lamport=self._lamport(pen))

    def _file(self, pen: Pen) -> Event:
        cid = "blake3:" + str(self.chance.randint(0, 3)) * 64
        if self.chance.random() < 0.5:
            return self.scribe.write(pen, "file.cid.unpinned", {"cid": cid})
        data = {"cid": cid, "sizes_bytes": 7}
        return self.scribe.write(pen, "file.cid.advertised", data, lamport=self._lamport(pen))

    def _ingest(self, pen: Pen) -> Event:
        cid = "blake3:" + str(self.chance.randint(0, 1)) * 64
        data = {"corpus": "rules", "doc_cid": cid, "chunks": 1}
        return self.scribe.write(pen, "rag.document.ingested", data, lamport=self._lamport(pen))

    def _describe(self, pen: Pen) -> Event:
        manifest = self.scribe.manifest(pen, self.chance.choice(["to", "seals"]))
        return self.scribe.write(pen, "node.manifest.updated", {"manifest": manifest})

    def _invite(self, pen: Pen) -> Event:
        level = self.chance.choice(["member", "trusted", "anchor"])
        return self.scribe.invite(
            pen, self._pick(), level, lamport=self._lamport(pen), event_id=self._event_id()
        )

    def _join(self, pen: Pen) -> Event:
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

    def _level(self, pen: Pen) -> Event:
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

    def _revoke(self, pen: Pen) -> Event:
        target = self._pick()
        last = self.chance.choice([None, self.chance.randint(0, target.seq)])
        return self.scribe.revoke(
            pen, target, *self._signers(), last_seq=last, lamport=self._lamport(pen)
        )

    def _floor(self, pen: Pen) -> Event:
        below = self.chance.randint(0, max(0, min(self.scribe.lamport, 1000)))
        heads = [
            (each, seq if self.chance.random() < 0.9 else seq // 2)
            for each, seq in self.scribe.heads(below)
        ]
        return self.scribe.floor(self.chance.choice([pen, self.pens[0]]), below, heads)

    def _policy(self, pen: Pen) -> Event:
        policy = {
            **self.scribe.events[0].data["policy"],
            "min_signatures_to_revoke": self.chance.randint(1, 3),
            "unchained_events": self.chance.random() < 0.3,
        }
        author = self.chance.choice([pen, self.scribe.root])
        return self.scribe.write(author, "community.policy.updated", {"policy": policy})

    def _strange(self, pen: Pen) -> Event:
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

    def _root(self, pen: Pen) -> Event:
        if self.chance.random() < 0.5:
            return self.scribe.post(self.scribe.root)
        return self.scribe.found(pen)


_Try = Callable[[Hostile, Pen], Event]

_WEIGHED: Final[dict[str, int]] = {
    "_post": 12, "_change": 5, "_say": 6, "_receive": 4, "_file": 4, "_ingest": 2, "_describe": 2,
    "_invite": 7, "_join": 7, "_level": 8, "_revoke": 9, "_floor": 3, "_policy": 2, "_strange": 2,
    "_root": 1,
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
    scribe = Scribe(seed, signed=signed)
    return scribe.community_id, itertools.islice(_realistic(scribe, seed, members), count)


def _realistic(scribe: Scribe, seed: int, members: int) -> Iterator[Event]:
    chance = random.Random(seed)  # noqa: S311
    founder = scribe.pen("founder")
    scribe.found(founder)
    everyone, trusted = [founder], [founder]
    scribe.write(founder, "node.manifest.updated", {"manifest": scribe.manifest(founder)})
    posts: list[tuple[Pen, Event]] = []
    messages: list[tuple[Pen, Event]] = []
    files: list[tuple[Pen, str]] = []
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


def _taken(scribe: Scribe) -> list[Event]:
    taken, scribe.events = scribe.events, []
    return taken
