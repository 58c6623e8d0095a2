"""The state of a community, and the one form in which all nodes write it.

`state_bytes` is the RFC 8785 form of one object, described member by member in
docs/concepts/fold.md: integers only (another number is kept as its RFC 8785 text), times in the
events' own words, arrays in the order of their keys, no clock. Two nodes with the same events write
the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.community.envelope import Position
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold.chains import Chain
from accord.community.fold.content import Content, Document, Manifest, Message, Post
from accord.community.fold.roster import Roster
from accord.community.fold.standing import Cutoff, Floor, Invite, Member
from accord.community.fold.verdicts import VERDICTS, Status
from accord.kernel import canonical

VERSION: Final = 1
MAX_BYTES: Final = 256 * 1024 * 1024
"""The largest state that is read."""

JsonObject = dict[str, Any]


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
        "manifests": [_manifest(*each) for each in sorted(content.manifests.items())],
        "market": [
            _post(event_id, post)
            for event_id, posts in sorted(content.posts.items())
            for post in sorted(posts, key=lambda post: post.author)
        ],
        "chat": [
            _message(event_id, message)
            for event_id, messages in sorted(content.messages.items())
            for message in sorted(messages, key=lambda message: message.author)
        ],
        "files": [
            {"cid": cid, "holder": holder, "size_bytes": size}
            for (cid, holder), size in sorted(content.files.items())
        ],
        "corpora": [_document(*each) for each in sorted(content.documents.items())],
    }


def state_from(raw: bytes) -> State:
    """Read a state that `state_bytes` wrote, and nothing else.

    Raises:
        CommunityError: It is not one: `bad_request`.
    """
    refusal = CommunityError(Code.BAD_REQUEST, "this is not a state that a fold wrote")
    try:
        state = _state(canonical.decode(raw, max_bytes=MAX_BYTES))
        written = state_bytes(state)
    except (canonical.CanonicalError, CommunityError):
        raise refusal from None
    except (KeyError, TypeError, ValueError, AttributeError):
        # Some member is missing or of another form; which one helps nobody.
        raise refusal from None
    if written != raw:
        raise refusal
    return state


def _state(payload: JsonObject) -> State:
    roster = Roster(payload["community_id"], {})
    roster.name, roster.created_at = payload["name"], payload["created_at"]
    roster.policy = payload["policy"]
    roster.members = {
        each["node_id"]: Member(
            Level.parse(each["level"]),
            each["added_at"],
            each["added_by"],
            _position_from(each["since"]),
        )
        for each in payload["members"]
    }
    roster.revoked = {
        each["node_id"]: Cutoff(
            each["last_seq"], each["last_hash"], _position_from(each["by"]), each["revoked_at"]
        )
        for each in payload["revoked"]
    }
    roster.cutoffs = dict(roster.revoked)
    for each in payload["invites"]:
        name = each["event_id"], each["invitee"]
        invite = Invite(
            each["inviter"],
            Level.parse(each["level"]),
            each["expires_at"],
            each["lamport"],
            each["redeemed"],
        )
        roster.invites[name] = (*roster.invites.get(name, ()), invite)
    roster.floors = [
        Floor(
            each["lamport"],
            {head["author"]: (head["author_seq"], head["hash"]) for head in each["heads"]},
            each["state_digest"],
            _position_from(each["by"]),
        )
        for each in payload["floors"]
    ]
    chains = {each["author"]: _chain_from(each) for each in payload["authors"]}
    counts = _counts_from(payload["counts"]["membership"])
    return State(payload["community_id"], roster, chains, _content(payload), counts)


def _content(payload: JsonObject) -> Content:
    content = Content()
    content.head = None if payload["head"] is None else _position_from(payload["head"])
    content.counts = _counts_from(payload["counts"]["content"])
    for each in payload["manifests"]:
        content.manifests[each["node_id"]] = Manifest(
            each["display_name"],
            tuple(
                (one["transport"], one["host"], one["port"], one["certificate"])
                for one in each["endpoints"]
            ),
            tuple(each["extensions"]),
            each["event"],
        )
    for each in payload["market"]:
        post = Post(
            each["author"],
            each["client_id"],
            each["lamport"],
            each["created_at"],
            {name: _degrees_from_text(name, value) for name, value in each["fields"].items()},
            each["ended"],
        )
        content.posts[each["event_id"]] = (*content.posts.get(each["event_id"], ()), post)
        content.clients["post", post.author, post.client_id] = True
    for each in payload["chat"]:
        message = Message(
            each["author"],
            each["recipient"],
            each["client_id"],
            each["lamport"],
            each["sent_at"],
            each["body"],
            tuple((one["cid"], one["name"]) for one in each["attachments"]),
            each["delivered_at"],
            each["read_at"],
        )
        same = content.messages.get(each["event_id"], ())
        content.messages[each["event_id"]] = (*same, message)
        content.clients["chat", message.author, message.client_id] = True
    for each in payload["files"]:
        content.files[each["cid"], each["holder"]] = each["size_bytes"]
    for each in payload["corpora"]:
        content.documents[each["corpus"], each["doc_cid"]] = Document(
            each["ingester"], each["lamport"], each["title"], each["language"], each["chunks"]
        )
    return content


def _counts(counts: Mapping[Status, int]) -> JsonObject:
    return {status.value: counts[status] for status in Status}


def _counts_from(payload: JsonObject) -> dict[Status, int]:
    return {status: payload[status.value] for status in Status}


def _position(position: Position) -> JsonObject:
    return {
        "lamport": position.lamport,
        "event_id": position.event_id,
        "hash": "blake3:" + position.digest.hex(),
    }


def _position_from(payload: JsonObject) -> Position:
    digest = bytes.fromhex(payload["hash"].removeprefix("blake3:"))
    return Position(payload["lamport"], payload["event_id"], digest)


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


def _chain_from(payload: JsonObject) -> Chain:
    fork, cut = payload["equivocation"], payload["broken"]
    return Chain(
        payload["author_seq"],
        payload["hash"],
        payload["lamport"],
        payload["seen_seq"],
        None
        if fork is None
        else (
            fork["author_seq"],
            bytes.fromhex(fork["events"][0].removeprefix("blake3:")),
            bytes.fromhex(fork["events"][1].removeprefix("blake3:")),
        ),
        None if cut is None else (cut["author_seq"], VERDICTS[cut["rule"]]),
    )


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
        "fields": {name: _degrees_to_text(name, value) for name, value in post.fields.items()},
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
        "body": message.body,
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


def _degrees_from_text(name: str, value: Any) -> Any:
    if name != "location":
        return value
    return {
        each: text if each == "label" else canonical.decode(text.encode())
        for each, text in value.items()
    }
