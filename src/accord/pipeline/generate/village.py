"""A generated community as it stands: who belongs, what is there to be answered or changed.

Owns how people come and go. What they do with each other is in `acts`, and what they should not do
in `stories` and `misdeeds`.
"""

from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from accord.pipeline.generate.arrivals import Draft
from accord.pipeline.generate.chronicle import REVOKED, Author, Chronicle, Signed
from accord.pipeline.landing import redaction
from accord.pipeline.streams import COMMUNITY_EVENTS

POLICY: Final = {
    "min_signatures_to_invite": 1,
    "min_signatures_to_demote": 3,
    "min_signatures_to_revoke": 3,
    "capability_token_ttl_seconds": 3600,
    "federation_enabled": False,
    "default_member_can_invite": True,
}
_THINGS: Final = ("Ladder", "Apples", "Bicycle", "Sewing machine", "Piano lessons", "Firewood")
_CATEGORIES: Final = ("offer", "request", "info")
_KEPT: Final = 500

Known = tuple[Author, Signed]
"""An event, and whose turn it is."""


class Village:
    """A community in the course of its life.

    Attributes:
        chronicle: Writes its events.
        chance: Decides everything.
        elders: The founder and two others: anchors, who are never revoked.
        members: Everybody who belongs, the elders first.
        trusted: Who may teach, and since which lamport.
        posts: Posts that stand, by their authors.
        sent: Messages that were not delivered yet, by their recipients.
        unread: Messages that were not read yet, by their recipients.
        files: Files that are held, by their holders.
    """

    def __init__(self, seed: int, name: str, chance: Random) -> None:
        self.chronicle = Chronicle(seed, name, chance)
        self.chance = chance
        self.elders: list[Author] = []
        self.members: list[Author] = []
        self.trusted: list[tuple[Author, int]] = []
        self.posts: deque[Known] = deque(maxlen=_KEPT)
        self.sent: deque[Known] = deque(maxlen=_KEPT)
        self.unread: deque[Known] = deque(maxlen=_KEPT)
        self.files: deque[tuple[Author, str]] = deque(maxlen=_KEPT)
        self._number = 0
        self._people = 0

    def fresh(self) -> int:
        """A number that was not given before."""
        self._number += 1
        return self._number

    def pick(self) -> Author:
        """A member; who came first is the busiest."""
        return self.members[int(len(self.members) * self.chance.random() ** 2)]

    def away(self, author: Author, above: int = -1) -> int | None:
        """The lamport of somebody who writes on from what it has seen itself; mostly None."""
        if self.chance.random() < 0.75:
            return None
        lamport = max(author.lamport, above) + 1
        self.chronicle.lamport = max(self.chronicle.lamport, lamport)
        return lamport

    def founding(self) -> Iterator[Signed]:
        """The first events: a founder, and two more who become anchors."""
        chronicle = self.chronicle
        founder = chronicle.author("founder")
        data = {"name": chronicle.name, "founder_node_id": founder.id, "policy": POLICY}
        yield chronicle.write(chronicle.root, "community.created", data)
        self.elders.append(founder)
        manifest = {"manifest": chronicle.manifest(founder, "to", "seals")}
        yield chronicle.write(founder, "node.manifest.updated", manifest)
        for _ in range(2):
            elder, events = self.newcomer("trusted")
            yield from events
            yield self._promoted(elder, "anchor")
            self.elders.append(elder)
        self.members += self.elders
        self.trusted = [(elder, chronicle.lamport) for elder in self.elders]

    def newcomer(self, level: str = "member") -> tuple[Author, list[Signed]]:
        """Somebody new, invited by the founder, with the events of it."""
        self._people += 1
        author = self.chronicle.author(f"member {self._people}")
        invite = self.chronicle.invited(self.elders[0], author.id, level)
        return author, [invite, self.chronicle.joined(author, invite.event_id)]

    def grow(self) -> list[Signed]:
        """A newcomer who stays; some are trusted at once."""
        newcomer, events = self.newcomer()
        self.members.append(newcomer)
        if self.chance.random() < 0.2:
            events.append(self._promoted(newcomer, "trusted"))
            self.trusted.append((newcomer, self.chronicle.lamport))
        return events

    def depart(self, target: Author) -> Signed:
        """A revocation by the elders, which lets everything stand that was written so far."""
        founder, *others = self.elders
        target.gone = True
        if target in self.members:
            self.members.remove(target)
        self.trusted = [each for each in self.trusted if each[0] is not target]
        return self.chronicle.write(founder, REVOKED, self.chronicle.revocation(target, others))

    def offer(self) -> dict[str, Any]:
        """The data of a new post."""
        thing = self.chance.choice(_THINGS)
        return {
            "client_id": f"post-{self.fresh()}",
            "category": self.chance.choice(_CATEGORIES),
            "title": thing,
            "body": f"{thing}, to be had near the {self.chance.choice(('mill', 'well'))}.",
            "tags": [thing.split()[0].lower()],
            "ttl_seconds": 86_400 * self.chance.randrange(1, 30),
        }

    def post(self, author: Author, lamport: int | None = None) -> Signed:
        """A post on the market."""
        return self.chronicle.write(author, "market.post.created", self.offer(), lamport=lamport)

    def _promoted(self, target: Author, level: str) -> Signed:
        raised = {"target_node_id": target.id, "new_level": level}
        return self.chronicle.write(self.elders[0], "community.member.promoted", raised)


def landed(signed: Signed, kind: str | None = None) -> Draft:
    """The record of an event, without what may not land."""
    draft = signed.draft(kind)
    if not signed.members["event_type"].startswith("chat."):
        return draft
    body = redaction.landed(COMMUNITY_EVENTS, draft.body)
    return Draft(draft.id, draft.at, body, kind, draft.digest)
