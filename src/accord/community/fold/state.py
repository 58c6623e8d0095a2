"""The state of a community, and the one form in which all nodes write it.

`state_bytes` is the RFC 8785 form of one object, described member by member in
docs/concepts/fold.md: integers only (another number is kept as its RFC 8785 text), times in the
events' own words, arrays in the order of their keys, no clock. Two nodes with the same events write
the same bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from accord.community.envelope import Position
from accord.community.fold.chains import Chain
from accord.community.fold.content import Content, Document, Manifest, Message, Post
from accord.community.fold.roster import Roster
from accord.community.fold.standing import Cutoff, Floor, Invite, Member
from accord.community.fold.verdicts import Status
from accord.kernel import canonical

VERSION: Final = 1
SECTIONS: Final = ("manifests", "market", "chat", "files", "corpora")
"""The members of a state that come from content: lists of items."""

JsonObject = dict[str, Any]


class Item(NamedTuple):
    """One entry of a section; a section is in the order of `key` and `second`, and has no ties."""

    section: str
    key: str
    second: str
    value: JsonObject


@dataclass(frozen=True, slots=True)
class State:
    """What all the events of a log come to; `membership_counts` are its events by status."""

    community_id: str
    roster: Roster
    chains: Mapping[str, Chain]
    content: Content
    membership_counts: Mapping[Status, int]

    @property
    def lamport(self) -> int:
        """The greatest lamport that is not quarantined; -1 before the first event."""
        return -1 if self.content.head is None else self.content.head.lamport

    @property
    def is_founded(self) -> bool:
        """Whether the founding event is here."""
        return self.roster.policy is not None


def empty(community_id: str) -> State:
    """The state before the first event."""
    return State(community_id, Roster(community_id, {}), {}, Content(), dict.fromkeys(Status, 0))


def state_bytes(state: State) -> bytes:
    """Write a state in its one form."""
    return canonical.encode(state_object(state))


def state_object(state: State) -> JsonObject:
    """A state as the JSON object of which `state_bytes` is the canonical form."""
    roster, content = state.roster, state.content
    sections: dict[str, list[JsonObject]] = {name: [] for name in SECTIONS}
    for item in items(content):
        sections[item.section].append(item.value)
    return {
        "version": VERSION,
        "community_id": state.community_id,
        "name": roster.name,
        "created_at": roster.created_at,
        "policy": None if roster.policy is None else dict(roster.policy),
        "head": None if content.head is None else _position(content.head),
        "counts": {
            "membership": _counts(state.membership_counts),
            "content": _counts(content.counts),
        },
        "members": [_member(*each) for each in sorted(roster.members.items())],
        "revoked": [_cutoff(*each) for each in sorted(roster.revoked.items())],
        "invites": [
            _invite(name, invite)
            for name, invites in sorted(roster.invites.items())
            for invite in sorted(invites)
        ],
        "floors": [_floor(each) for each in roster.floors],
        "authors": [_chain(*each) for each in sorted(state.chains.items())],
        **sections,
    }


def items(content: Content) -> Iterator[Item]:
    """Everything that the state says of content, section by section in the state's order."""
    for node_id, manifest in sorted(content.manifests.items()):
        yield Item("manifests", node_id, "", _manifest(node_id, manifest))
    for event_id, posts in sorted(content.posts.items()):
        for post in sorted(posts, key=lambda post: post.author):
            yield Item("market", event_id, post.author, _post(event_id, post))
    for event_id, messages in sorted(content.messages.items()):
        for message in sorted(messages, key=lambda message: message.author):
            yield Item("chat", event_id, message.author, _message(event_id, message))
    for (cid, holder), size in sorted(content.files.items()):
        held = {"cid": cid, "holder": holder, "size_bytes": size}
        yield Item("files", cid, holder, held)
    for name, document in sorted(content.documents.items()):
        yield Item("corpora", *name, _document(name, document))


def _counts(counts: Mapping[Status, int]) -> JsonObject:
    return {status.value: counts[status] for status in Status}


def _position(position: Position) -> JsonObject:
    return {
        "lamport": position.lamport,
        "event_id": position.event_id,
        "hash": "blake3:" + position.digest.hex(),
    }


def _member(node_id: str, member: Member) -> JsonObject:
    return {
        "node_id": node_id,
        "level": member.level.text,
        "added_at": member.added_at,
        "added_by": member.added_by,
        "since": _position(member.since),
    }


def _cutoff(node_id: str, cutoff: Cutoff) -> JsonObject:
    return {
        "node_id": node_id,
        "revoked_at": cutoff.revoked_at,
        "last_seq": cutoff.last_seq,
        "last_hash": cutoff.last_hash,
        "by": _position(cutoff.position),
    }


def _invite(name: tuple[str, str], invite: Invite) -> JsonObject:
    return {
        "event_id": name[0],
        "invitee": name[1],
        "inviter": invite.inviter,
        "level": invite.level.text,
        "expires_at": invite.expires_at,
        "lamport": invite.lamport,
        "redeemed": invite.redeemed,
    }


def _floor(floor: Floor) -> JsonObject:
    return {
        "lamport": floor.lamport,
        "heads": [
            {"author": author, "author_seq": seq, "hash": head}
            for author, (seq, head) in sorted(floor.heads.items())
        ],
        "state_digest": floor.state_digest,
        "by": _position(floor.position),
    }


def _chain(author: str, chain: Chain) -> JsonObject:
    fork, cut = chain.fork, chain.cut
    return {
        "author": author,
        "author_seq": chain.head_seq,
        "hash": chain.head_hash,
        "lamport": chain.head_lamport,
        "seen_seq": chain.seen_seq,
        "equivocation": None
        if fork is None
        else {
            "author_seq": fork[0],
            "events": ["blake3:" + fork[1].hex(), "blake3:" + fork[2].hex()],
        },
        "broken": None if cut is None else {"author_seq": cut[0], "rule": cut[1].rule},
    }


def _manifest(node_id: str, manifest: Manifest) -> JsonObject:
    return {
        "node_id": node_id,
        "display_name": manifest.display_name,
        "endpoints": [
            {"transport": transport, "host": host, "port": port, "certificate": certificate}
            for transport, host, port, certificate in manifest.endpoints
        ],
        "extensions": list(manifest.extensions),
        "event": manifest.event,
    }


def _post(event_id: str, post: Post) -> JsonObject:
    return {
        "event_id": event_id,
        "author": post.author,
        "client_id": post.client_id,
        "lamport": post.lamport,
        "created_at": post.created_at,
        "fields": {
            name: _degrees_to_text(name, value)
            for name, value in post.fields.items()
            if name != "client_id"
        },
        "ended": post.ended,
    }


def _message(event_id: str, message: Message) -> JsonObject:
    return {
        "event_id": event_id,
        "author": message.author,
        "recipient": message.recipient,
        "client_id": message.client_id,
        "lamport": message.lamport,
        "sent_at": message.sent_at,
        "event": message.event,
        "attachments": [{"cid": cid, "name": name} for cid, name in message.attachments],
        "delivered_at": message.delivered_at,
        "read_at": message.read_at,
    }


def _document(name: tuple[str, str], document: Document) -> JsonObject:
    return {
        "corpus": name[0],
        "doc_cid": name[1],
        "ingester": document.ingester,
        "lamport": document.lamport,
        "title": document.title,
        "language": document.language,
        "chunks": document.chunks,
    }


def _degrees_to_text(name: str, value: Any) -> Any:
    """The only numbers that are not integers are the degrees of a post's location."""
    if name != "location":
        return value
    return {
        each: degree if isinstance(degree, str) else canonical.encode(degree).decode()
        for each, degree in value.items()
    }
