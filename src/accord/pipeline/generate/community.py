"""A generated community: its members, their signed events, and the calls that its bus answered.

Nothing is validated when an event is written, so that `community_faults` can write faulty ones; all
events here are valid.
"""

import base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from blake3 import blake3

from accord.community.errors import Code
from accord.community.rules import event, formats, manifests
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.pipeline.generate.records import HistoryClock, RecordDraft
from accord.pipeline.rules import redaction
from accord.pipeline.rules.streams import COMMUNITY_EVENTS

YEAR: Final = 365 * 86_400.0
REVOKED: Final = "community.member.revoked"


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
    """Writes the events of one community; keys derive from the seed."""

    def __init__(self, seed: int, name: str, chance: Random) -> None:
        self.name = name
        self.clock = HistoryClock()
        self.lamport = -1  # the greatest so far, without explicitly given ones
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

        `by` signs it instead of the author; `wrong` are members to overwrite with wrong values.
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

Known = tuple[Author, SignedEvent]
"""An event, and whose turn it is."""


class GeneratedCommunity:
    """A growing community."""

    def __init__(self, seed: int, name: str, chance: Random) -> None:
        self.writer = EventWriter(seed, name, chance)
        self.chance = chance
        # The founder and two others: anchors, who are never revoked.
        self.elders: list[Author] = []
        self.members: list[Author] = []  # all of them, the elders first
        self.trusted: list[tuple[Author, int]] = []  # who may teach, and since which lamport
        self.posts: deque[Known] = deque(maxlen=_KEPT)  # open posts, by author
        self.sent: deque[Known] = deque(maxlen=_KEPT)  # undelivered messages, by recipient
        self.unread: deque[Known] = deque(maxlen=_KEPT)  # unread messages, by recipient
        self.files: deque[tuple[Author, str]] = deque(maxlen=_KEPT)  # by holder
        self._number = 0
        self._people = 0

    def fresh(self) -> int:
        """A new number."""
        self._number += 1
        return self._number

    def pick(self) -> Author:
        """A random member; the oldest are the most active."""
        return self.members[int(len(self.members) * self.chance.random() ** 2)]

    def away(self, author: Author, above: int = -1) -> int | None:
        """The lamport of a member that was offline; mostly None."""
        if self.chance.random() < 0.75:
            return None
        lamport = max(author.lamport, above) + 1
        self.writer.lamport = max(self.writer.lamport, lamport)
        return lamport

    def founding(self) -> Iterator[SignedEvent]:
        """The first events: a founder, and two more who become anchors."""
        writer = self.writer
        founder = writer.author("founder")
        data = {"name": writer.name, "founder_node_id": founder.id, "policy": POLICY}
        yield writer.write(writer.root, "community.created", data)
        self.elders.append(founder)
        manifest = {"manifest": writer.manifest(founder, "to", "seals")}
        yield writer.write(founder, "node.manifest.updated", manifest)
        for _ in range(2):
            elder, events = self.newcomer("trusted")
            yield from events
            yield self._promoted(elder, "anchor")
            self.elders.append(elder)
        self.members += self.elders
        self.trusted = [(elder, writer.lamport) for elder in self.elders]

    def newcomer(self, level: str = "member") -> tuple[Author, list[SignedEvent]]:
        """A new member, invited by the founder, with the events of its admission."""
        self._people += 1
        author = self.writer.author(f"member {self._people}")
        invite = self.writer.invited(self.elders[0], author.id, level)
        return author, [invite, self.writer.joined(author, invite.event_id)]

    def grow(self) -> list[SignedEvent]:
        """A new member that stays; some are trusted at once."""
        newcomer, events = self.newcomer()
        self.members.append(newcomer)
        if self.chance.random() < 0.2:
            events.append(self._promoted(newcomer, "trusted"))
            self.trusted.append((newcomer, self.writer.lamport))
        return events

    def depart(self, target: Author) -> SignedEvent:
        """A revocation by the elders, after which all earlier events stay valid."""
        founder, *others = self.elders
        target.gone = True
        if target in self.members:
            self.members.remove(target)
        self.trusted = [each for each in self.trusted if each[0] is not target]
        return self.writer.write(founder, REVOKED, self.writer.revocation(target, others))

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

    def post(self, author: Author, lamport: int | None = None) -> SignedEvent:
        """A post on the market."""
        return self.writer.write(author, "market.post.created", self.offer(), lamport=lamport)

    def _promoted(self, target: Author, level: str) -> SignedEvent:
        raised = {"target_node_id": target.id, "new_level": level}
        return self.writer.write(self.elders[0], "community.member.promoted", raised)


def landed_draft(signed: SignedEvent, kind: str | None = None) -> RecordDraft:
    """The redacted record of an event."""
    draft = signed.draft(kind)
    if not signed.members["event_type"].startswith("chat."):
        return draft
    body = redaction.redact(COMMUNITY_EVENTS, draft.body)
    return RecordDraft(draft.id, draft.at, body, kind, draft.digest)


_CORPORA: Final = ("house-rules", "garden", "repairs")

# Few enough that members are always left.
_FEW_MEMBERS: Final = 12


def act(community: GeneratedCommunity) -> SignedEvent:
    """The next random events."""
    turn = community.chance.random()
    for threshold, what in _ACTS:
        if turn < threshold and (event := what(community)) is not None:
            return event
    return _offer(community)


def _offer(community: GeneratedCommunity) -> SignedEvent:
    author = community.pick()
    event = community.post(author, community.away(author))
    community.posts.append((author, event))
    return event


def _change(community: GeneratedCommunity) -> SignedEvent | None:
    if (found := _standing(community)) is None:
        return None
    author, post = found
    data = {
        "client_id": f"change-{community.fresh()}",
        "target_event_id": post.event_id,
        "fields": {"title": f"{post.members['data']['title']} ({community.fresh()})"},
    }
    lamport = community.away(author, post.lamport)
    return community.writer.write(author, "market.post.updated", data, lamport=lamport)


def _end(community: GeneratedCommunity) -> SignedEvent | None:
    if (found := _standing(community)) is None:
        return None
    community.posts.remove(found)
    author, post = found
    by = author if community.chance.random() < 0.9 else community.elders[1]
    data = {
        "client_id": f"end-{community.fresh()}",
        "target_event_id": post.event_id,
        "reason": "fulfilled" if by is author else "stale",
    }
    return community.writer.write(by, "market.post.expired", data)


def _standing(community: GeneratedCommunity) -> Known | None:
    if not community.posts:
        return None
    found = community.posts[community.chance.randrange(len(community.posts))]
    return None if found[0].gone else found


def _say(community: GeneratedCommunity) -> SignedEvent | None:
    author, recipient = community.pick(), community.pick()
    if author is recipient:
        return None
    data: dict[str, Any] = {"client_id": f"chat-{community.fresh()}", "recipient": recipient.id}
    if community.chance.random() < 0.1:
        data["body"] = f"See you at {community.chance.randrange(8, 20)}."
    else:
        data["sealed"] = _seal(community)
    event = community.writer.write(author, "chat.message.sent", data)
    community.sent.append((recipient, event))
    return event


def _seal(community: GeneratedCommunity) -> dict[str, str]:
    """Random bytes in the form of a sealed text."""
    stream = blake3(b"seal %d" % community.chance.getrandbits(64)).digest(length=256)
    size = community.chance.randrange(64, 112)
    return {
        "algorithm": "x25519-sealed",
        "to_recipient": base64.urlsafe_b64encode(stream[:size]).decode().rstrip("="),
        "to_sender": base64.urlsafe_b64encode(stream[112 : 112 + size]).decode().rstrip("="),
        "commit": f"blake3:{stream[224:].hex()}",
    }


def _receipt(
    community: GeneratedCommunity, what: str, waiting: deque[Known], then: deque[Known] | None
) -> SignedEvent | None:
    if not waiting:
        return None
    reader, message = waiting.popleft()
    if reader.gone:
        return None
    if then is not None:
        then.append((reader, message))
    moment = format_time(community.writer.clock.time)
    data = {"target_event_id": message.event_id, f"{what}_at": moment}
    lamport = community.away(reader, message.lamport)
    return community.writer.write(reader, f"chat.message.{what}", data, lamport=lamport)


def _keep(community: GeneratedCommunity) -> SignedEvent:
    author, cid = community.pick(), _cid(community)
    community.files.append((author, cid))
    data = {"cid": cid, "sizes_bytes": community.chance.randrange(1, 10_000_000)}
    lamport = community.away(author)
    return community.writer.write(author, "file.cid.advertised", data, lamport=lamport)


def _release(community: GeneratedCommunity) -> SignedEvent | None:
    if not community.files:
        return None
    author, cid = community.files.popleft()
    if author.gone:
        return None
    return community.writer.write(author, "file.cid.unpinned", {"cid": cid})


def _teach(community: GeneratedCommunity) -> SignedEvent:
    author, since = community.chance.choice(community.trusted)
    data = {
        "corpus": community.chance.choice(_CORPORA),
        "doc_cid": _cid(community),
        "title": f"Page {community.fresh()}",
        "language": community.chance.choice(("de", "en")),
        "chunks": community.chance.randrange(1, 40),
    }
    lamport = community.away(author, since)
    return community.writer.write(author, "rag.document.ingested", data, lamport=lamport)


def _describe(community: GeneratedCommunity) -> SignedEvent:
    author = community.pick()
    manifest = community.writer.manifest(author, community.chance.choice(("to", "seals")))
    return community.writer.write(author, "node.manifest.updated", {"manifest": manifest})


def _govern(community: GeneratedCommunity) -> SignedEvent:
    policy = {**POLICY, "capability_token_ttl_seconds": 600 * community.chance.randrange(1, 12)}
    root = community.writer.root
    return community.writer.write(root, "community.policy.updated", {"policy": policy})


def _part(community: GeneratedCommunity) -> SignedEvent | None:
    if len(community.members) <= _FEW_MEMBERS:
        return None
    return community.depart(community.chance.choice(community.members[len(community.elders) :]))


def _cid(community: GeneratedCommunity) -> str:
    return "blake3:" + blake3(b"file %d" % community.chance.getrandbits(64)).hexdigest()


_ACTS: Final[tuple[tuple[float, Callable[[GeneratedCommunity], SignedEvent | None]], ...]] = (
    (0.001, _govern),
    (0.002, _part),
    (0.02, _describe),
    (0.04, _teach),
    (0.13, _change),
    (0.18, _end),
    (0.42, _say),
    (0.55, lambda village: _receipt(village, "delivered", village.sent, village.unread)),
    (0.60, lambda village: _receipt(village, "read", village.unread, None)),
    (0.70, _keep),
    (0.74, _release),
)
"""What may happen: the first whose threshold lies above chance, and that can be done."""


_CAPABILITIES: Final = (
    *("llm.chat", "embed.text", "rag.query", "market.post", "market.search", "chat.send"),
    *("file.put", "community.invite"),
)
_REFUSED_CALLS: Final = (
    ("trust", Code.UNAUTHORIZED),
    ("schema", Code.SCHEMA_MISMATCH),
    ("schema", Code.BAD_REQUEST),
    ("replay", Code.BAD_REQUEST),
    ("capability", Code.NOT_FOUND),
    ("capability", Code.CAPACITY_EXCEEDED),
    (None, Code.TIMEOUT),
    (None, Code.INTERNAL_ERROR),
)
"""The check that refused a call, if one did, and the code of the answer."""


def bus_calls(
    count: int, community: str, callers: list[str], chance: Random
) -> Iterator[RecordDraft]:
    """Calls by members of a community."""
    clock = HistoryClock()
    ids = UlidSource(clock, lambda: chance.getrandbits(80))
    for _ in range(count):
        clock.time += chance.expovariate(1 / 15)
        check, code = None, None
        if chance.random() < 0.06:
            check, code = chance.choice(_REFUSED_CALLS)
        request = ids.new()
        body = {
            "request_id": request,
            "community": community,
            "caller": callers[int(len(callers) * chance.random() ** 2)],
            "capability": chance.choice(_CAPABILITIES),
            "version": "1.0",
            "status": code.status if code else 200,
            "code": code.value if code else None,
            "check": check,
            "ms": int(chance.lognormvariate(3, 1.2)),
            "request_bytes": chance.randrange(40, 4000),
            "response_bytes": chance.randrange(60, 20_000),
            "request_digest": _text_digest(f"asked {request}"),
            "response_digest": _text_digest(f"answered {request}"),
        }
        at = int(clock.time * 1000)
        yield RecordDraft(ids.new(), at, canonical.encode(body).decode())


def _text_digest(text: str) -> str:
    return f"blake3:{blake3(text.encode()).hexdigest()}"


Story = Callable[[GeneratedCommunity], Iterator[RecordDraft]]
"""Something that happens at one turn of a community's life."""


def size_of(events: int) -> int:
    """The number of members for a number of events."""
    return max(8, min(400, events // 60))


def community_events(
    community: GeneratedCommunity, count: int, stories: Sequence[tuple[int, Story]] = ()
) -> Iterator[RecordDraft]:
    """At least `count` valid events, and those of the stories, in order."""
    waiting = deque(stories)
    written = 0
    for signed in community.founding():
        yield landed_draft(signed)
        written += 1
    size = size_of(count)
    while written < count or waiting:
        while waiting and (waiting[0][0] <= written or written >= count):
            yield from waiting.popleft()[1](community)
        is_growing = len(community.members) < size and community.chance.random() < 0.03
        for signed in community.grow() if is_growing else (act(community),):
            yield landed_draft(signed)
            written += 1
